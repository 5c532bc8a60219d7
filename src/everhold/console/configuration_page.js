import { f as $, t as a, u as d } from "./preact.js";
import { A as call, O as ApiError, T as useResource, W as words, c as Loaded, o as Table, s as Action, v as formatFull } from "./shared.js";
import { n as Problems } from "./health_page2.js";
function ConfigurationPage() {
	const config = useResource((signal) => call("GET /api/config", {}, void 0, signal), []);
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.configuration }),
		/* @__PURE__ */ a("p", {
			class: "hint",
			children: words.configuration.about
		}),
		/* @__PURE__ */ a(Loaded, {
			resource: config,
			children: (found) => /* @__PURE__ */ a(Editor, {
				config: found,
				reload: config.reload
			}, found.digest)
		})
	] });
}
function Editor({ config, reload }) {
	const [text, write] = d(config.text);
	const [checked, show] = d(null);
	const changed = text !== config.text;
	const check = async () => show(await call("POST /api/config/check", {}, { text }));
	const save = async () => {
		try {
			const written = await call("POST /api/config", {}, {
				text,
				base: config.digest
			});
			reload();
			return written.restart.length ? words.configuration.needsRestart(written.restart.join(", ")) : words.configuration.written;
		} catch (error) {
			if (error instanceof ApiError && error.status === 400) await check();
			throw error;
		}
	};
	return /* @__PURE__ */ a($, { children: [
		!config.in_force && /* @__PURE__ */ a("p", {
			class: "problem",
			children: words.configuration.notInForce
		}),
		config.restart.length > 0 && /* @__PURE__ */ a("p", {
			class: "problem",
			children: words.configuration.needsRestart(config.restart.join(", "))
		}),
		/* @__PURE__ */ a(Problems, { rows: config.problems }),
		/* @__PURE__ */ a("label", {
			class: "field",
			children: [/* @__PURE__ */ a("span", { children: "config.yaml" }), /* @__PURE__ */ a("textarea", {
				class: "code-field",
				rows: 24,
				spellcheck: false,
				value: text,
				onInput: (event) => {
					write(event.currentTarget.value);
					show(null);
				}
			})]
		}),
		/* @__PURE__ */ a("div", {
			class: "row",
			children: [
				/* @__PURE__ */ a(Action, {
					label: words.configuration.check,
					disabled: !changed,
					act: check
				}),
				/* @__PURE__ */ a(Action, {
					label: words.configuration.save,
					disabled: !changed,
					confirm: words.configuration.confirmSave,
					act: save
				}),
				/* @__PURE__ */ a(Action, {
					label: words.configuration.discard,
					disabled: !changed,
					act: async () => write(config.text)
				})
			]
		}),
		checked && /* @__PURE__ */ a(Checked, { checked }),
		/* @__PURE__ */ a(Versions, {
			base: config.digest,
			reload
		})
	] });
}
function Checked({ checked }) {
	return /* @__PURE__ */ a("section", {
		role: "status",
		children: [
			/* @__PURE__ */ a("p", {
				class: checked.valid ? "good" : "bad",
				children: checked.valid ? words.configuration.valid : words.configuration.invalid
			}),
			/* @__PURE__ */ a(Problems, { rows: checked.problems }),
			checked.diff && /* @__PURE__ */ a(Diff, { text: checked.diff })
		]
	});
}
function Diff({ text }) {
	const kind = (line) => line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
	return /* @__PURE__ */ a("pre", {
		class: "block diff",
		tabIndex: 0,
		children: text.split("\n").map((line) => /* @__PURE__ */ a("span", {
			class: kind(line),
			children: `${line}\n`
		}))
	});
}
function Versions({ base, reload }) {
	const versions = useResource((signal) => call("GET /api/config/versions", {}, void 0, signal), [base]);
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h3", { children: words.configuration.versions }), /* @__PURE__ */ a(Loaded, {
		resource: versions,
		children: ({ versions: rows }) => /* @__PURE__ */ a(Table, {
			label: words.configuration.versions,
			rows,
			getKey: (it) => it.id,
			empty: words.configuration.noVersions,
			columns: [
				{
					title: words.delivery.at,
					show: (it) => formatFull(it.at)
				},
				{
					title: words.configuration.by,
					show: (it) => it.by
				},
				{
					title: words.actions,
					show: (it) => /* @__PURE__ */ a(Action, {
						label: words.configuration.restore,
						confirm: words.configuration.confirmRestore,
						act: async () => void await call("POST /api/config/undo", {}, {
							id: it.id,
							base
						}),
						onDone: reload
					})
				}
			]
		})
	})] });
}
export { ConfigurationPage as default };
