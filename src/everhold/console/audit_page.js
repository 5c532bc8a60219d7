import { c as T, f as $, o as A, t as a, u as d } from "./preact.js";
import { M as buildLink, V as readStream, W as words, v as formatFull, w as Problem } from "./shared.js";
function AuditPage() {
	const [report, show] = d(null);
	const [progress, advance] = d(null);
	const [error, fail] = d(null);
	const running = T(null);
	const run = async () => {
		const abort = running.current = new AbortController();
		advance({
			done: 0,
			total: 0
		});
		fail(null);
		try {
			const status = await readStream("/api/audit?stream=1", {
				signal: abort.signal,
				onEvent: ({ event, data }) => {
					if (event === "progress") advance(data);
					else if (event === "report" || data.promises) show({
						...data,
						at: Date.now() / 1e3
					});
				}
			});
			if (status) fail(new Error(words.audit.refused(status)));
		} catch (caught) {
			if (!abort.signal.aborted) fail(caught);
		}
		advance(null);
	};
	A(() => {
		run();
		return () => running.current?.abort();
	}, []);
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.audit }),
		/* @__PURE__ */ a(Problem, { error }),
		/* @__PURE__ */ a("p", {
			role: "status",
			children: progress ? words.audit.progress(progress.done, progress.total) : report && words.audit.ended(report.sessions, formatFull(report.at))
		}),
		progress && progress.total > 0 && /* @__PURE__ */ a("progress", {
			max: progress.total,
			value: progress.done,
			"aria-label": words.pages.audit
		}),
		/* @__PURE__ */ a("button", {
			class: "plain-button",
			disabled: Boolean(progress),
			onClick: () => void run(),
			children: words.audit.again
		}),
		report && /* @__PURE__ */ a(Results, { report })
	] });
}
function Results({ report }) {
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("ul", {
		class: "promises",
		children: report.promises.map((it) => /* @__PURE__ */ a("li", {
			class: it.holds ? "holds" : "broken",
			children: [
				/* @__PURE__ */ a("p", { children: [
					/* @__PURE__ */ a("strong", { children: it.holds ? words.audit.holds : words.audit.broken }),
					" ",
					it.text
				] }),
				/* @__PURE__ */ a("p", {
					class: "hint",
					children: it.evidence
				}),
				it.doubts > 0 && /* @__PURE__ */ a("p", {
					class: "hint",
					children: words.audit.doubts(it.doubts)
				})
			]
		}))
	}), report.findings.length > 0 && /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h3", { children: words.audit.findings }), /* @__PURE__ */ a("ul", {
		class: "traces",
		children: report.findings.map((it) => /* @__PURE__ */ a("li", {
			class: it.level === "doubt" ? void 0 : "bad",
			children: [
				it.promise,
				" ",
				it.text,
				" ",
				it.session && /* @__PURE__ */ a("a", {
					href: it.seq ? buildLink("inspect", [it.session, "entry"], { at: String(it.seq) }) : buildLink("inspect", [it.session]),
					children: words.inspect.open
				})
			]
		}))
	})] })] });
}
export { AuditPage as default };
