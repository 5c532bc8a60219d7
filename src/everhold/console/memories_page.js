import { f as $, t as a, u as d } from "./preact.js";
import { A as call, E as state, M as buildLink, S as formatShort, T as useResource, W as words, b as formatNumber, c as Loaded, i as Field, o as Table, r as Choice, s as Action, v as formatFull, x as formatSeconds, y as formatMoney } from "./shared.js";
function MemoriesPage() {
	const operator = state.caller.value?.operator;
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.memories }),
		operator && /* @__PURE__ */ a(Status, {}),
		/* @__PURE__ */ a(Search, {}),
		operator && /* @__PURE__ */ a(Comparison, {})
	] });
}
function Status() {
	const status = useResource((signal) => call("GET /api/memory/status", {}, void 0, signal), [], (entry) => entry.kind === "ended");
	return /* @__PURE__ */ a(Loaded, {
		resource: status,
		children: ({ memories }) => /* @__PURE__ */ a(Table, {
			label: words.memories.delivery,
			rows: memories,
			getKey: (it) => `${it.agent} ${it.memory}`,
			empty: words.memories.none,
			columns: [
				{
					title: words.agent,
					show: (it) => it.agent
				},
				{
					title: words.memories.memory,
					show: (it) => it.memory
				},
				{
					title: words.delivery.state,
					show: describeState
				},
				{
					title: words.memories.backlog,
					show: (it) => formatNumber(it.backlog),
					isNumber: true
				},
				{
					title: words.memories.since,
					show: (it) => it.backlog_since ? formatShort(it.backlog_since) : ""
				},
				{
					title: words.memories.sent,
					show: (it) => it.sent === null ? "" : formatNumber(it.sent),
					isNumber: true
				},
				{
					title: words.pages.deadLetters,
					show: (it) => /* @__PURE__ */ a(DeadLetters, { row: it }),
					isNumber: true
				},
				{
					title: words.actions,
					show: (it) => /* @__PURE__ */ a(Resend, { row: it })
				}
			]
		})
	});
}
function describeState(row) {
	if (row.error || !row.available) return /* @__PURE__ */ a("span", {
		class: "bad",
		children: [
			row.error || words.memories.unavailable,
			" ",
			row.remedy && /* @__PURE__ */ a("span", {
				class: "hint",
				children: row.remedy
			})
		]
	});
	return /* @__PURE__ */ a("span", {
		class: "hint",
		children: row.report || words.memories.available
	});
}
function DeadLetters({ row }) {
	const number = row.dead_letters + row.in_doubt;
	return number ? /* @__PURE__ */ a("a", {
		href: buildLink("deadLetters", [], { consumer: `memory:${row.memory}` }),
		children: number
	}) : null;
}
var DAY_SECONDS = 86400;
function Resend({ row }) {
	const resend = (dry_run) => async () => {
		const since = Date.now() / 1e3 - DAY_SECONDS;
		const done = await call("POST /api/memory/providers/{name}/resend", { name: row.memory }, {
			since,
			agent: row.agent,
			dry_run
		});
		return words.memories.resent(done.items, done.sessions);
	};
	return /* @__PURE__ */ a("div", {
		class: "row",
		children: [/* @__PURE__ */ a(Action, {
			label: words.memories.planResend,
			act: resend(true)
		}), /* @__PURE__ */ a(Action, {
			label: words.memories.resend,
			act: resend(false),
			confirm: words.memories.confirmResend
		})]
	});
}
function Search() {
	const [query, write] = d("");
	const [agent, choose] = d("");
	const [person, name] = d("");
	const [found, show] = d(null);
	const operator = state.caller.value?.operator;
	const agents = state.agents.value.map((it) => [it, it]);
	const look = async () => show(await call("GET /api/memory/search", {
		q: query.trim(),
		agent,
		person: operator ? person.trim() : "",
		limit: 30
	}));
	return /* @__PURE__ */ a("section", {
		"aria-label": words.memories.search,
		children: [
			/* @__PURE__ */ a("h3", { children: words.memories.search }),
			/* @__PURE__ */ a("form", {
				class: "filters",
				role: "search",
				onSubmit: (event) => event.preventDefault(),
				children: [
					/* @__PURE__ */ a(Field, {
						label: words.memories.query,
						value: query,
						onInput: write,
						type: "search"
					}),
					/* @__PURE__ */ a(Choice, {
						label: words.agent,
						value: agent,
						options: [["", words.memories.defaultAgent], ...agents],
						onChange: choose
					}),
					operator && /* @__PURE__ */ a(Field, {
						label: words.sessions.person,
						value: person,
						onInput: name
					}),
					/* @__PURE__ */ a(Action, {
						label: words.memories.find,
						act: look
					})
				]
			}),
			found && /* @__PURE__ */ a(Findings, { found })
		]
	});
}
function Findings({ found }) {
	return /* @__PURE__ */ a("div", {
		role: "status",
		children: [
			found.unavailable.length > 0 && /* @__PURE__ */ a("p", {
				class: "bad",
				children: words.memories.silent(found.unavailable.join(", "))
			}),
			/* @__PURE__ */ a("h3", { children: [
				words.memories.facts,
				" ",
				/* @__PURE__ */ a("span", {
					class: "count",
					children: found.facts.length
				})
			] }),
			/* @__PURE__ */ a("ul", {
				class: "traces",
				children: found.facts.map((fact) => /* @__PURE__ */ a("li", {
					class: fact.until || fact.replaced_by ? "undone" : void 0,
					children: [/* @__PURE__ */ a("p", {
						class: "plain",
						children: fact.text
					}), /* @__PURE__ */ a("p", {
						class: "hint",
						children: [
							fact.target,
							formatFull(fact.at),
							fact.until ? words.memories.validUntil(formatFull(fact.until)) : "",
							fact.replaced_by ? words.memories.replacedBy(fact.replaced_by) : ""
						].filter(Boolean).join(" · ")
					})]
				}))
			}),
			/* @__PURE__ */ a("h3", { children: [
				words.memories.hits,
				" ",
				/* @__PURE__ */ a("span", {
					class: "count",
					children: found.memories.length
				})
			] }),
			/* @__PURE__ */ a("ul", {
				class: "traces",
				children: found.memories.map((hit) => /* @__PURE__ */ a("li", { children: [/* @__PURE__ */ a("p", {
					class: "plain",
					children: hit.text
				}), /* @__PURE__ */ a("p", {
					class: "hint",
					children: [
						hit.provider,
						hit.person?.replace(/^person:/, ""),
						hit.at ? formatFull(hit.at) : "",
						hit.origin
					].filter(Boolean).join(" · ")
				})] }))
			}),
			!found.facts.length && !found.memories.length && /* @__PURE__ */ a("p", {
				class: "hint",
				children: words.memories.nothing
			})
		]
	});
}
function Comparison() {
	const [agent, choose] = d("");
	const [open, setOpen] = d(false);
	const agents = state.agents.value.map((it) => [it, it]);
	return /* @__PURE__ */ a("section", {
		"aria-label": words.memories.comparison,
		children: [
			/* @__PURE__ */ a("h3", { children: words.memories.comparison }),
			/* @__PURE__ */ a("p", {
				class: "hint",
				children: words.memories.comparisonAbout
			}),
			/* @__PURE__ */ a("form", {
				class: "filters",
				onSubmit: (event) => event.preventDefault(),
				children: [/* @__PURE__ */ a(Choice, {
					label: words.agent,
					value: agent,
					options: [["", words.memories.defaultAgent], ...agents],
					onChange: choose
				}), /* @__PURE__ */ a(Action, {
					label: words.memories.compare,
					act: async () => setOpen(true)
				})]
			}),
			open && /* @__PURE__ */ a(Compared, { agent: agent || (state.agents.value[0] ?? "") }, agent)
		]
	});
}
function Compared({ agent }) {
	const compared = useResource((signal) => call("POST /api/memory/compare", {}, { agent }, signal), [agent]);
	return /* @__PURE__ */ a(Loaded, {
		resource: compared,
		children: ({ memories, overlaps }) => /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a(Table, {
			label: words.memories.comparison,
			rows: memories,
			getKey: (it) => it.memory,
			empty: words.memories.nothingAsked,
			columns: [
				{
					title: words.memories.memory,
					show: (it) => it.memory
				},
				{
					title: words.memories.mode,
					show: (it) => it.mode
				},
				{
					title: words.memories.asked,
					show: (it) => it.asked,
					isNumber: true
				},
				{
					title: words.memories.answered,
					show: (it) => it.answered,
					isNumber: true
				},
				{
					title: words.memories.found,
					show: (it) => it.found,
					isNumber: true
				},
				{
					title: words.memories.used,
					show: (it) => it.used,
					isNumber: true
				},
				{
					title: words.memories.alone,
					show: (it) => it.alone,
					isNumber: true
				},
				{
					title: words.memories.median,
					show: (it) => formatSeconds(it.seconds_p50),
					isNumber: true
				},
				{
					title: words.memories.slow,
					show: (it) => formatSeconds(it.seconds_p95),
					isNumber: true
				},
				{
					title: words.usage.cost,
					show: (it) => formatMoney(it.usd),
					isNumber: true
				}
			]
		}), overlaps.map((it) => /* @__PURE__ */ a("p", {
			class: "hint",
			children: words.memories.overlap(it.first, it.second, Math.round(it.share * 100))
		}))] })
	});
}
export { MemoriesPage as default };
