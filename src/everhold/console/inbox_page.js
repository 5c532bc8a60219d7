import { f as $, t as a, u as d } from "./preact.js";
import { A as call, E as state, M as buildLink, S as formatShort, T as useResource, W as words, c as Loaded, i as Field, l as Facts, o as Table, s as Action, v as formatFull } from "./shared.js";
function Approvals() {
	const approvals = useResource((signal) => call("GET /api/approvals", {}, void 0, signal), [], (entry) => entry.kind.startsWith("approval"));
	return /* @__PURE__ */ a("section", {
		"aria-label": words.approvals.name,
		children: [/* @__PURE__ */ a("h3", { children: words.approvals.name }), /* @__PURE__ */ a(Loaded, {
			resource: approvals,
			children: ({ approvals: rows }) => /* @__PURE__ */ a($, { children: [!rows.length && /* @__PURE__ */ a("p", {
				class: "hint",
				children: words.approvals.none
			}), /* @__PURE__ */ a("ul", {
				class: "inbox",
				children: rows.map((it) => /* @__PURE__ */ a(Approval, {
					approval: it,
					reload: approvals.reload
				}, it.id))
			})] })
		})]
	});
}
function Approval({ approval, reload }) {
	const [note, write] = d("");
	const answer = (decision) => async () => (await call("POST /api/approvals/{id}", { id: approval.id }, {
		decision,
		digest: approval.digest,
		...decision === "deny" && { note }
	})).text;
	return /* @__PURE__ */ a("li", {
		class: "inbox-item approval",
		children: [
			/* @__PURE__ */ a("p", { children: [
				/* @__PURE__ */ a("strong", { children: words.approvals.asks(approval.agent, approval.tool) }),
				" ",
				/* @__PURE__ */ a("a", {
					href: buildLink("session", [approval.session]),
					children: words.inspect.open
				})
			] }),
			/* @__PURE__ */ a("pre", {
				class: "block",
				tabIndex: 0,
				children: approval.arguments
			}),
			/* @__PURE__ */ a(Facts, { rows: [
				[words.approvals.askedBy, approval.asked_by],
				[words.approvals.effect, [approval.effect, approval.reach].filter(Boolean).join(", ")],
				[words.approvals.expires, formatFull(approval.expires)],
				[words.delivery.state, approval.state !== "open" && (words.approvals.states[approval.state] ?? approval.state)]
			] }),
			approval.can_answer && /* @__PURE__ */ a("div", {
				class: "row",
				children: [
					/* @__PURE__ */ a(Action, {
						label: words.approvals.once,
						act: answer("once"),
						onDone: reload
					}),
					approval.can_remember && /* @__PURE__ */ a(Action, {
						label: words.approvals.always,
						confirm: words.approvals.confirmAlways,
						act: answer("always"),
						onDone: reload
					}),
					/* @__PURE__ */ a(Field, {
						label: words.approvals.note,
						value: note,
						onInput: write
					}),
					/* @__PURE__ */ a(Action, {
						label: words.approvals.deny,
						danger: true,
						act: answer("deny"),
						onDone: reload
					})
				]
			})
		]
	});
}
function Rules() {
	const rules = useResource((signal) => call("GET /api/rules", {}, void 0, signal), [], (entry) => entry.kind === "approval_decided");
	return /* @__PURE__ */ a("section", {
		"aria-label": words.approvals.rules,
		children: [/* @__PURE__ */ a("h3", { children: words.approvals.rules }), /* @__PURE__ */ a(Loaded, {
			resource: rules,
			children: ({ rules: rows }) => /* @__PURE__ */ a(Table, {
				label: words.approvals.rules,
				rows,
				getKey: (it) => it.id,
				empty: words.approvals.noRules,
				columns: [
					{
						title: words.agent,
						show: (it) => it.agent
					},
					{
						title: words.tools.tool,
						show: (it) => it.tool
					},
					{
						title: words.tool.arguments,
						show: (it) => /* @__PURE__ */ a("code", { children: it.arguments })
					},
					{
						title: words.approvals.by,
						show: (it) => it.by
					},
					{
						title: words.approvals.expires,
						show: (it) => formatFull(it.until)
					},
					{
						title: words.actions,
						show: (it) => /* @__PURE__ */ a(Action, {
							label: words.people.revoke,
							act: async () => void await call("POST /api/rules/{id}/revoke", { id: it.id }),
							onDone: rules.reload
						})
					}
				]
			})
		})]
	});
}
function InboxPage() {
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.inbox }),
		state.caller.value?.operator && /* @__PURE__ */ a(Items, {}),
		/* @__PURE__ */ a(Approvals, {}),
		/* @__PURE__ */ a(Rules, {})
	] });
}
function Items() {
	const inbox = useResource((signal) => call("GET /api/inbox", {}, void 0, signal), [], (entry) => [
		"ended",
		"notified",
		"changed"
	].includes(entry.kind));
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a(Loaded, {
		resource: inbox,
		children: ({ items }) => /* @__PURE__ */ a($, { children: [!items.length && /* @__PURE__ */ a("p", {
			class: "good",
			children: words.inbox.empty
		}), /* @__PURE__ */ a("ul", {
			class: "inbox",
			children: items.map((item) => /* @__PURE__ */ a(Item, {
				item,
				reload: inbox.reload
			}, item.id))
		})] })
	}), /* @__PURE__ */ a(Action, {
		label: words.refresh,
		act: async () => inbox.reload()
	})] });
}
function Item({ item, reload }) {
	return /* @__PURE__ */ a("li", {
		class: `inbox-item ${item.kind}`,
		children: [
			/* @__PURE__ */ a("p", {
				class: "hint",
				children: [words.inbox.kinds[item.kind] ?? item.kind, item.at !== null && ` · ${formatShort(item.at)}`]
			}),
			/* @__PURE__ */ a("p", {
				class: "plain",
				children: item.title
			}),
			/* @__PURE__ */ a("p", {
				class: "hint",
				children: item.remedy
			}),
			/* @__PURE__ */ a("div", {
				class: "row",
				children: [/* @__PURE__ */ a(Step, {
					item,
					reload
				}), /* @__PURE__ */ a("a", {
					href: findPlace(item),
					children: words.inbox.open
				})]
			})
		]
	});
}
function Step({ item, reload }) {
	if (item.kind === "pairing") return /* @__PURE__ */ a(ApprovePairing, { reload });
	if (item.kind === "tools") return /* @__PURE__ */ a(ConfirmTools, {
		server: item.data.server,
		reload
	});
	if (item.kind === "failing") return /* @__PURE__ */ a(Action, {
		label: words.conversation.tryNow,
		act: async () => void await call("POST /api/retry"),
		onDone: reload
	});
	return null;
}
function ApprovePairing({ reload }) {
	const [code, write] = d("");
	return /* @__PURE__ */ a("form", {
		class: "row",
		onSubmit: (event) => event.preventDefault(),
		children: [/* @__PURE__ */ a(Field, {
			label: words.people.code,
			value: code,
			onInput: write
		}), /* @__PURE__ */ a(Action, {
			label: words.people.approve,
			disabled: !code.trim(),
			act: async () => {
				const done = await call("POST /api/pairing/approve", {}, { code: code.trim() });
				return words.people.approved(done.person || done.identity);
			},
			onDone: reload
		})]
	});
}
function ConfirmTools({ server, reload }) {
	return /* @__PURE__ */ a("div", { children: [server.waiting.map((tool) => /* @__PURE__ */ a("details", { children: [
		/* @__PURE__ */ a("summary", { children: [
			tool.name,
			" ",
			/* @__PURE__ */ a("span", {
				class: "hint",
				children: tool.state
			})
		] }),
		/* @__PURE__ */ a("pre", {
			class: "block",
			children: tool.description
		}),
		tool.before && /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("p", {
			class: "hint",
			children: words.tools.before
		}), /* @__PURE__ */ a("pre", {
			class: "block",
			children: tool.before
		})] }),
		/* @__PURE__ */ a("pre", {
			class: "block",
			children: tool.parameters
		})
	] })), /* @__PURE__ */ a(Action, {
		label: words.tools.confirm(server.waiting.length),
		confirm: words.tools.confirmAbout,
		act: async () => void await call("POST /api/tools/{server}/confirm", { server: server.server }, { digest: server.digest }),
		onDone: reload
	})] });
}
function findPlace(item) {
	const [path = "", query = ""] = item.about.split("?", 2);
	const [first = "", second = ""] = path.split("/");
	if (first === "session") return buildLink("session", [second]);
	if (path === "memory/dead-letters") return buildLink("deadLetters", [], Object.fromEntries(new URLSearchParams(query)));
	if (path === "setup/config") return buildLink("configuration");
	if (item.kind === "tools") return buildLink("tools");
	if (first === "people" || first === "memory") return buildLink(first === "people" ? "people" : "memories");
	return buildLink("health");
}
export { ConfirmTools as n, InboxPage as r, ApprovePairing as t };
