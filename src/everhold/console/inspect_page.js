import { A as call, D as parseAddress, E as state, F as place, M as buildLink, P as go, T as useResource, W as words, _ as formatExactTime, a as usePages, b as formatNumber, c as Loaded, d as nameSession, i as Field, j as callForText, l as Facts, n as saveFile, o as Table, r as Choice, s as Action, v as formatFull, w as Problem, x as formatSeconds, y as formatMoney } from "./shared.js";
import { f as $, t as a, u as d } from "./preact.js";
function MessageList({ messages }) {
	return /* @__PURE__ */ a("ol", {
		class: "model-messages",
		children: messages.map((message, index) => /* @__PURE__ */ a(ModelMessage, { message }, index))
	});
}
function ModelMessage({ message }) {
	const { role = "", name, text, ...rest } = message;
	const more = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== null && value !== "" && !(Array.isArray(value) && !value.length)));
	return /* @__PURE__ */ a("li", {
		class: `role-${role}`,
		children: [
			/* @__PURE__ */ a("p", {
				class: "by",
				children: [words.context.roles[role] ?? role, name].filter(Boolean).join(" · ")
			}),
			text && /* @__PURE__ */ a("pre", { children: String(text) }),
			Object.keys(more).length > 0 && /* @__PURE__ */ a("pre", {
				class: "more",
				children: JSON.stringify(more, null, 2)
			})
		]
	});
}
var THOUGHTS = 100;
function ContextView({ id, at }) {
	const context = useResource((signal) => call("GET /api/sessions/{id}/context", {
		id,
		at
	}, void 0, signal), [id, at], at ? null : (entry) => entry.session === id);
	return /* @__PURE__ */ a("section", {
		"aria-label": words.inspect.context,
		children: [/* @__PURE__ */ a(ThoughtChoice, {
			id,
			at
		}), /* @__PURE__ */ a(Loaded, {
			resource: context,
			children: (found) => {
				const parts = found.parts;
				return /* @__PURE__ */ a($, { children: [
					/* @__PURE__ */ a(Exactness, {
						exact: found.exact,
						reason: found.reason,
						at
					}),
					/* @__PURE__ */ a(PartBar, { parts }),
					/* @__PURE__ */ a(Parts, {
						parts,
						request: found.request
					})
				] });
			}
		})]
	});
}
function Exactness({ exact, reason, at }) {
	if (!at) return /* @__PURE__ */ a("p", {
		class: "hint",
		children: words.context.next
	});
	if (exact) return /* @__PURE__ */ a("p", {
		class: "good",
		children: words.context.exact
	});
	return /* @__PURE__ */ a("p", {
		class: exact === false ? "bad" : "hint",
		children: reason || words.context.notRecorded
	});
}
function ThoughtChoice({ id, at, b }) {
	const thoughts = useResource((signal) => call("GET /api/sessions/{id}/timeline", {
		id,
		limit: THOUGHTS
	}, void 0, signal), [id]).value?.operations.flatMap((row) => [...row.thoughts].reverse()) ?? [];
	const options = [.../* @__PURE__ */ new Set([
		...at ? [at] : [],
		...b ? [b] : [],
		...thoughts
	])].sort((x, y) => y - x).map((seq) => [String(seq), words.timeline.thought(seq)]);
	const open = (query) => go(buildLink("inspect", [id, "context"], query));
	return /* @__PURE__ */ a("form", {
		class: "filters",
		onSubmit: (event) => event.preventDefault(),
		children: [/* @__PURE__ */ a(Choice, {
			label: words.context.at,
			value: String(at ?? ""),
			options: [["", words.context.nextTurn], ...options],
			onChange: (seq) => open({
				at: seq,
				b: b && seq ? String(b) : ""
			})
		}), at && /* @__PURE__ */ a(Choice, {
			label: words.context.compareWith,
			value: String(b ?? ""),
			options: [["", words.context.nothing], ...options],
			onChange: (seq) => open({
				at: String(at),
				b: seq
			})
		})]
	});
}
function PartBar({ parts }) {
	const total = parts.reduce((sum, part) => sum + part.tokens, 0);
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("p", {
		class: "hint",
		children: words.tokens(formatNumber(total))
	}), /* @__PURE__ */ a("div", {
		class: "token-bar",
		"aria-hidden": "true",
		children: parts.map((part) => /* @__PURE__ */ a("i", {
			class: `part-${part.kind}`,
			style: { width: `${part.tokens / Math.max(1, total) * 100}%` },
			title: words.context.parts[part.kind]
		}))
	})] });
}
function Parts({ parts, request }) {
	return /* @__PURE__ */ a("ol", {
		class: "context-parts",
		children: parts.map((part, index) => /* @__PURE__ */ a("li", { children: /* @__PURE__ */ a("details", {
			open: part.kind === "exchange" && index === parts.length - 1,
			children: [/* @__PURE__ */ a("summary", { children: [
				/* @__PURE__ */ a("span", {
					class: `swatch part-${part.kind}`,
					"aria-hidden": "true"
				}),
				/* @__PURE__ */ a("span", { children: describePart(part) }),
				/* @__PURE__ */ a("span", {
					class: "hint",
					children: words.tokens(formatNumber(part.tokens))
				})
			] }), /* @__PURE__ */ a(PartText, {
				part,
				request
			})]
		}) }, index))
	});
}
function PartText({ part, request }) {
	if (part.kind === "system") return /* @__PURE__ */ a("pre", { children: String(request.system ?? "") });
	if (part.kind === "tools") return /* @__PURE__ */ a("pre", { children: JSON.stringify(request.tools ?? [], null, 2) });
	return part.messages ? /* @__PURE__ */ a(MessageList, { messages: (request.messages ?? []).slice(...part.messages) }) : null;
}
function describePart(part) {
	const name = words.context.parts[part.kind];
	if (part.kind === "compression") return `${name} · ${words.log.covers(part.covers)}`;
	const [first, last] = [part.seqs[0], part.seqs.at(-1)];
	return first === void 0 ? name : `${name} · ${words.context.entries(first, last ?? first)}`;
}
function ContextDiff({ id, a: a$1, b }) {
	const diff = useResource((signal) => call("GET /api/sessions/{id}/context/diff", {
		id,
		a: a$1,
		b
	}, void 0, signal), [
		id,
		a$1,
		b
	]);
	return /* @__PURE__ */ a("section", {
		"aria-label": words.inspect.context,
		children: [/* @__PURE__ */ a(ThoughtChoice, {
			id,
			at: a$1,
			b
		}), /* @__PURE__ */ a(Loaded, {
			resource: diff,
			children: (found) => /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("p", { children: words.context.difference(formatNumber(found.tokens_before), formatNumber(found.tokens_after)) }), /* @__PURE__ */ a(Table, {
				label: words.inspect.context,
				rows: found.parts.map((it, index) => ({
					...it,
					index
				})),
				getKey: (it) => it.index,
				empty: words.context.nothing,
				columns: [
					{
						title: words.context.change,
						show: (it) => /* @__PURE__ */ a("span", {
							class: `change ${it.change}`,
							children: describeChange(it)
						})
					},
					{
						title: words.context.part,
						show: (it) => describePart(it.part)
					},
					{
						title: words.context.before,
						show: (it) => formatNumber(it.tokens_before),
						isNumber: true
					},
					{
						title: words.context.after,
						show: (it) => formatNumber(it.tokens_after),
						isNumber: true
					}
				]
			})] })
		})]
	});
}
function describeChange(it) {
	const name = words.context.changes[it.change];
	return it.change === "compressed" && it.by ? `${name} (${words.log.operation(it.by)})` : name;
}
function DeliveriesView({ id, seq }) {
	const entry = useResource((signal) => call("GET /api/sessions/{id}/entries", {
		id,
		after: seq - 1,
		limit: 1
	}, void 0, signal), [id, seq]);
	return /* @__PURE__ */ a("section", {
		"aria-label": words.delivery.entry(seq),
		children: [
			/* @__PURE__ */ a("h3", { children: words.delivery.entry(seq) }),
			/* @__PURE__ */ a(Loaded, {
				resource: entry,
				children: ({ entries }) => /* @__PURE__ */ a("pre", {
					class: "block",
					children: JSON.stringify(entries[0] ?? null, null, 2)
				})
			}),
			state.caller.value?.operator && /* @__PURE__ */ a(Deliveries, {
				id,
				seq
			})
		]
	});
}
function Deliveries({ id, seq }) {
	const found = useResource((signal) => call("GET /api/sessions/{id}/entries/{seq}/deliveries", {
		id,
		seq
	}, void 0, signal), [id, seq]);
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h3", { children: words.delivery.title }), /* @__PURE__ */ a(Loaded, {
		resource: found,
		children: ({ deliveries }) => /* @__PURE__ */ a(Table, {
			label: words.delivery.title,
			rows: deliveries,
			getKey: (it) => `${it.consumer} ${it.remote} ${it.at}`,
			empty: words.delivery.none,
			columns: [
				{
					title: words.delivery.consumer,
					show: (it) => it.consumer
				},
				{
					title: words.delivery.state,
					show: (it) => words.delivery.states[it.state]
				},
				{
					title: words.delivery.remote,
					show: (it) => it.remote
				},
				{
					title: words.delivery.at,
					show: (it) => it.at ? formatFull(it.at) : ""
				},
				{
					title: words.delivery.reason,
					show: (it) => it.error || it.reason
				}
			]
		})
	})] });
}
function ManageView({ session, reload }) {
	const operator = state.caller.value?.operator;
	return /* @__PURE__ */ a("section", {
		class: "stack",
		"aria-label": words.inspect.manage,
		children: [
			/* @__PURE__ */ a(Facts, { rows: [
				[words.manage.id, /* @__PURE__ */ a("code", { children: session.id })],
				[words.agent, session.agent],
				[words.manage.address, /* @__PURE__ */ a("code", { children: session.address })],
				[words.manage.entries, formatNumber(session.last_seq)],
				[words.manage.lastEntry, formatFull(session.at)]
			] }),
			/* @__PURE__ */ a(Rename, {
				session,
				reload
			}),
			/* @__PURE__ */ a("div", {
				class: "row",
				children: [
					/* @__PURE__ */ a(Action, {
						label: session.archived ? words.manage.unarchive : words.manage.archive,
						act: async () => void await call("POST /api/sessions/{id}/archive", { id: session.id }, { archived: !session.archived }),
						onDone: reload
					}),
					/* @__PURE__ */ a(Compress, { session }),
					state.isOwnChat(session) && /* @__PURE__ */ a(Branch, { session }),
					operator && /* @__PURE__ */ a(Export, { session })
				]
			}),
			operator && /* @__PURE__ */ a(Erase, { session })
		]
	});
}
function Rename({ session, reload }) {
	const [title, write] = d(session.title);
	return /* @__PURE__ */ a("form", {
		class: "row",
		onSubmit: (event) => event.preventDefault(),
		children: [/* @__PURE__ */ a(Field, {
			label: words.manage.title,
			value: title,
			onInput: write
		}), /* @__PURE__ */ a(Action, {
			label: words.manage.rename,
			disabled: !title.trim() || title === session.title,
			act: async () => void await call("POST /api/sessions/{id}/title", { id: session.id }, { title: title.trim() }),
			onDone: reload
		})]
	});
}
function Compress({ session }) {
	const compress = (preview) => async () => (await call("POST /api/sessions/{id}/compress", { id: session.id }, { preview })).message;
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a(Action, {
		label: words.manage.previewCompression,
		act: compress(true)
	}), /* @__PURE__ */ a(Action, {
		label: words.manage.compress,
		act: compress(false),
		confirm: words.manage.confirmCompress
	})] });
}
function Branch({ session }) {
	const { agent, chat } = parseAddress(session.address);
	return /* @__PURE__ */ a(Action, {
		label: words.manage.branch,
		act: async () => {
			await call("POST /api/messages", {}, {
				id: crypto.randomUUID(),
				agent,
				chat,
				text: "/branch"
			});
			return words.manage.branched;
		}
	});
}
function Export({ session }) {
	return /* @__PURE__ */ a(Action, {
		label: words.manage.export,
		act: async () => saveFile(`${session.id}.ndjson`, await callForText("GET /api/sessions/{id}/export", { id: session.id }))
	});
}
function Erase({ session }) {
	const [planned, setPlanned] = d(false);
	return /* @__PURE__ */ a("fieldset", {
		class: "danger-zone",
		children: [
			/* @__PURE__ */ a("legend", { children: words.manage.erase }),
			/* @__PURE__ */ a("p", { children: words.manage.eraseAbout }),
			planned ? /* @__PURE__ */ a(ErasurePlan, { session }) : /* @__PURE__ */ a("button", {
				class: "plain-button",
				onClick: () => setPlanned(true),
				children: words.manage.planErasure
			})
		]
	});
}
function ErasurePlan({ session }) {
	const plan = useResource((signal) => call("GET /api/sessions/{id}/erasure-plan", { id: session.id }, void 0, signal), [session.id]);
	const erase = async (found) => {
		const { erased } = await call("POST /api/sessions/{id}/erase", { id: session.id }, { seqs: found.seqs });
		return words.manage.erased(erased.length);
	};
	return /* @__PURE__ */ a(Loaded, {
		resource: plan,
		children: (found) => /* @__PURE__ */ a($, { children: [
			/* @__PURE__ */ a(Facts, { rows: [
				[words.manage.entries, formatNumber(found.seqs.length)],
				[words.manage.records, formatNumber(found.records)],
				[words.manage.running, found.ends.join(", ")],
				[words.manage.branches, found.branches.map((id) => /* @__PURE__ */ a("a", {
					href: buildLink("inspect", [id]),
					children: [id, " "]
				}))],
				...Object.entries(found.delivered).map(([place, count]) => [place, words.manage.delivered(count)])
			] }),
			/* @__PURE__ */ a("p", {
				class: "hint",
				children: words.manage.eraseElsewhere
			}),
			/* @__PURE__ */ a(Action, {
				label: words.manage.erase,
				danger: true,
				confirm: words.manage.confirmErase,
				disabled: !found.seqs.length,
				act: () => erase(found),
				onDone: plan.reload
			})
		] })
	});
}
function CompressionDiff({ id, op }) {
	const [open, setOpen] = d(false);
	if (!open) return /* @__PURE__ */ a("button", {
		class: "plain-button",
		onClick: () => setOpen(true),
		children: words.timeline.showReplaced
	});
	return /* @__PURE__ */ a(Diff, {
		id,
		op
	});
}
function Diff({ id, op }) {
	const diff = useResource((signal) => call("GET /api/sessions/{id}/compressions/{op}/diff", {
		id,
		op
	}, void 0, signal), [id, op]);
	return /* @__PURE__ */ a(Loaded, {
		resource: diff,
		children: ({ replaced, by }) => /* @__PURE__ */ a("div", {
			class: "columns",
			children: [/* @__PURE__ */ a("section", { children: [/* @__PURE__ */ a("h3", { children: words.timeline.replaced(replaced.length) }), /* @__PURE__ */ a(MessageList, { messages: replaced })] }), /* @__PURE__ */ a("section", { children: [/* @__PURE__ */ a("h3", { children: words.timeline.by }), /* @__PURE__ */ a(MessageList, { messages: by })] })]
		})
	});
}
var PAGE_SIZE = 50;
var FILTERS = [
	"all",
	"failed",
	"tools",
	"memory",
	"compressions"
];
function TimelineView({ id }) {
	const [filter, setFilter] = d("all");
	const list = usePages(async (before, signal) => {
		const found = await call("GET /api/sessions/{id}/timeline", {
			id,
			limit: PAGE_SIZE,
			before
		}, void 0, signal);
		return {
			items: found.operations,
			next: found.next
		};
	}, [id], (entry) => entry.session === id && [
		"began",
		"ended",
		"changed"
	].includes(entry.kind));
	const shown = list.items.filter((row) => matches(row, filter));
	const longest = Math.max(1, ...shown.map((row) => measure(row).waited + measure(row).worked));
	return /* @__PURE__ */ a("section", {
		"aria-label": words.inspect.timeline,
		children: [
			/* @__PURE__ */ a("form", {
				class: "filters",
				onSubmit: (event) => event.preventDefault(),
				children: /* @__PURE__ */ a(Choice, {
					label: words.timeline.show,
					value: filter,
					options: FILTERS.map((it) => [it, words.timeline.filters[it]]),
					onChange: (it) => setFilter(it)
				})
			}),
			/* @__PURE__ */ a(Problem, { error: list.error }),
			!list.loading && !shown.length && /* @__PURE__ */ a("p", {
				class: "hint",
				children: words.timeline.empty
			}),
			/* @__PURE__ */ a("ol", {
				class: "timeline",
				children: shown.map((row) => /* @__PURE__ */ a(Operation, {
					id,
					row,
					longest,
					latest: findLatest(list.items, row),
					reload: list.reload
				}, row.op))
			}),
			!list.isComplete && /* @__PURE__ */ a("button", {
				class: "plain-button",
				disabled: list.loading,
				onClick: list.loadMore,
				children: list.loading ? words.loading : words.earlier
			})
		]
	});
}
function matches(row, filter) {
	if (filter === "failed") return [
		"failed",
		"interrupted",
		"refused"
	].includes(row.state);
	if (filter === "tools") return row.calls.length > 0;
	if (filter === "memory") return row.notes > 0;
	return filter === "all" || row.type === "compression";
}
function measure(row) {
	return {
		waited: row.asked_at === null ? 0 : Math.max(0, row.began_at - row.asked_at),
		worked: Math.max(0, (row.ended_at ?? row.began_at) - row.began_at)
	};
}
function findLatest(rows, row) {
	return rows.find((it) => it.type === row.type && it.state === "done" && !it.undone_at)?.op === row.op;
}
function Operation({ id, row, longest, latest, reload }) {
	const { waited, worked } = measure(row);
	const width = (seconds) => ({ width: `${Math.max(seconds ? 1 : 0, seconds / longest * 100)}%` });
	return /* @__PURE__ */ a("li", {
		class: `operation ${row.type} ${row.state}${row.undone_at ? " undone" : ""}`,
		children: /* @__PURE__ */ a("details", { children: [
			/* @__PURE__ */ a("summary", { children: [
				/* @__PURE__ */ a("time", {
					datetime: (/* @__PURE__ */ new Date(row.began_at * 1e3)).toISOString(),
					title: formatFull(row.began_at),
					children: formatExactTime(row.began_at)
				}),
				/* @__PURE__ */ a("span", {
					class: "type",
					children: words.timeline.types[row.type] ?? row.type
				}),
				/* @__PURE__ */ a("span", {
					class: "outcome",
					children: row.undone_at ? words.log.undone : words.timeline.outcomes[row.state] ?? row.state
				}),
				/* @__PURE__ */ a("span", {
					class: "bar",
					"aria-hidden": "true",
					children: [/* @__PURE__ */ a("i", {
						class: "waited",
						style: width(waited)
					}), /* @__PURE__ */ a("i", {
						class: "worked",
						style: width(worked)
					})]
				}),
				/* @__PURE__ */ a("span", {
					class: "hint",
					children: summarize(row, worked)
				})
			] }),
			/* @__PURE__ */ a(Details, {
				id,
				row,
				waited,
				worked
			}),
			row.type === "compression" && row.state === "done" && /* @__PURE__ */ a(CompressionDiff, {
				id,
				op: row.op
			}),
			latest && /* @__PURE__ */ a(Undo, {
				id,
				row,
				reload
			})
		] })
	});
}
function summarize(row, worked) {
	const parts = [formatSeconds(worked)];
	if (row.type === "compression" && row.tokens_after) parts.push(words.timeline.shrunk(formatNumber(row.tokens_before), formatNumber(row.tokens_after)));
	if (row.calls.length) parts.push(row.calls.map((it) => it.tool).join(", "));
	if (row.attempts > 1) parts.push(words.timeline.attempts(row.attempts));
	return parts.join(" · ");
}
function Details({ id, row, waited, worked }) {
	const used = row.usage;
	return /* @__PURE__ */ a("ul", {
		class: "details-list",
		children: [
			/* @__PURE__ */ a("li", { children: [
				words.timeline.operation(row.op, row.first, row.last),
				row.model && ` · ${row.model}`,
				row.trigger && ` · ${words.timeline.trigger(row.trigger)}`
			] }),
			/* @__PURE__ */ a("li", { children: words.timeline.times(formatSeconds(waited), formatSeconds(worked)) }),
			row.reason && /* @__PURE__ */ a("li", {
				class: "bad",
				children: row.reason
			}),
			(used.input ?? 0) > 0 && /* @__PURE__ */ a("li", { children: [words.timeline.used(formatNumber(used.input ?? 0), formatNumber(used.cached ?? 0), formatNumber(used.output ?? 0)), (used.usd ?? 0) > 0 && ` · ${formatMoney(used.usd ?? 0)}`] }),
			row.thoughts.map((seq, index) => /* @__PURE__ */ a("li", { children: [
				words.timeline.thought(seq),
				": ",
				/* @__PURE__ */ a("a", {
					href: buildLink("inspect", [id, "context"], { at: String(seq) }),
					children: words.inspect.context
				}),
				" ·",
				" ",
				/* @__PURE__ */ a("a", {
					href: buildLink("inspect", [id, "why"], { at: String(seq) }),
					children: words.inspect.why
				}),
				index > 0 && /* @__PURE__ */ a($, { children: [" · ", /* @__PURE__ */ a("a", {
					href: buildLink("inspect", [id, "context"], {
						at: String(row.thoughts[index - 1]),
						b: String(seq)
					}),
					children: words.timeline.differsFrom(row.thoughts[index - 1])
				})] })
			] })),
			row.calls.map((it) => /* @__PURE__ */ a("li", {
				class: it.state === "failed" || it.state === "unknown" ? "bad" : void 0,
				children: [
					it.tool,
					": ",
					words.tool[it.state],
					it.ended_at !== null && ` · ${formatSeconds(it.ended_at - it.began_at)}`
				]
			}))
		]
	});
}
function Undo({ id, row, reload }) {
	const what = row.type === "compression" ? "compress" : "turn";
	if (row.type !== "compression" && row.type !== "turn") return null;
	return /* @__PURE__ */ a(Action, {
		label: words.timeline.undo,
		confirm: what === "turn" ? words.timeline.undoTurn : void 0,
		act: async () => (await call("POST /api/sessions/{id}/undo", { id }, { what })).message,
		onDone: reload
	});
}
function WhyView({ id, at }) {
	const why = useResource((signal) => call("GET /api/sessions/{id}/why", {
		id,
		at
	}, void 0, signal), [id, at]);
	return /* @__PURE__ */ a("section", {
		"aria-label": words.inspect.why,
		children: /* @__PURE__ */ a(Loaded, {
			resource: why,
			children: (found) => /* @__PURE__ */ a(Explanation, { found })
		})
	});
}
function Explanation({ found }) {
	const groups = [
		[words.why.facts, found.facts ?? []],
		[words.why.shown, found.shown ?? []],
		[words.why.leftOut, found.left_out ?? []],
		[words.why.shadow, found.shadow ?? []]
	];
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a(Facts, { rows: [
			[words.why.answer, words.timeline.thought(found.at)],
			[words.why.audience, found.audience.map((it) => it.replace(/^person:/, "")).join(", ")],
			[words.why.budget, words.why.spent(formatNumber(found.tokens ?? 0), formatNumber(found.budget ?? 0))],
			[words.why.memories, describeAnswers(found)],
			[words.why.silent, found.unavailable?.join(", ")]
		] }),
		/* @__PURE__ */ a("p", { children: /* @__PURE__ */ a("a", {
			href: buildLink("inspect", [found.session, "context"], { at: String(found.at) }),
			children: words.why.toContext
		}) }),
		groups.every(([, items]) => !items.length) && /* @__PURE__ */ a("p", {
			class: "hint",
			children: words.why.nothing
		}),
		groups.map(([title, items]) => items.length > 0 && /* @__PURE__ */ a(Traces, {
			title,
			items
		}, title))
	] });
}
function describeAnswers(found) {
	return Object.entries(found.answers ?? {}).map(([name, it]) => it.seconds === void 0 ? name : `${name} (${formatSeconds(it.seconds)})`).join(", ");
}
function Traces({ title, items }) {
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h3", { children: [
		title,
		" ",
		/* @__PURE__ */ a("span", {
			class: "count",
			children: items.length
		})
	] }), /* @__PURE__ */ a("ul", {
		class: "traces",
		children: items.map((it) => /* @__PURE__ */ a("li", { children: [
			/* @__PURE__ */ a("p", {
				class: "plain",
				children: it.text || words.log.erased
			}),
			/* @__PURE__ */ a("p", {
				class: "hint",
				children: [[
					it.provider,
					it.person?.replace(/^person:/, ""),
					it.at ? formatFull(it.at) : "",
					it.origin
				].filter(Boolean).join(" · "), it.session && it.seq ? /* @__PURE__ */ a(Source, {
					session: it.session,
					seq: it.seq
				}) : null]
			}),
			it.why_not && /* @__PURE__ */ a("p", {
				class: "bad",
				children: it.why_not
			})
		] }))
	})] });
}
function Source({ session, seq }) {
	const label = words.context.entries(seq, seq);
	if (!state.caller.value?.operator) return /* @__PURE__ */ a($, { children: [" · ", label] });
	return /* @__PURE__ */ a($, { children: [" · ", /* @__PURE__ */ a("a", {
		href: buildLink("inspect", [session, "entry"], { at: String(seq) }),
		children: label
	})] });
}
var TABS = [
	"timeline",
	"context",
	"why",
	"manage"
];
function InspectPage() {
	const { parts, query } = place.value;
	const [id = "", part = "timeline"] = parts;
	const session = useResource((signal) => call("GET /api/sessions/{id}", { id }, void 0, signal), [id], (entry) => entry.session === id && entry.kind === "changed");
	const at = readNumber(query.get("at"));
	return /* @__PURE__ */ a(Loaded, {
		resource: session,
		children: (found) => /* @__PURE__ */ a($, { children: [
			/* @__PURE__ */ a(Head, {
				session: found,
				part
			}),
			part === "timeline" && /* @__PURE__ */ a(TimelineView, { id: found.id }),
			part === "context" && (query.get("b") ? /* @__PURE__ */ a(ContextDiff, {
				id: found.id,
				a: at ?? 1,
				b: readNumber(query.get("b")) ?? 1
			}) : /* @__PURE__ */ a(ContextView, {
				id: found.id,
				at
			})),
			part === "why" && /* @__PURE__ */ a(WhyView, {
				id: found.id,
				at
			}),
			part === "manage" && /* @__PURE__ */ a(ManageView, {
				session: found,
				reload: session.reload
			}),
			part === "entry" && /* @__PURE__ */ a(DeliveriesView, {
				id: found.id,
				seq: at ?? 1
			})
		] })
	});
}
function readNumber(text) {
	const number = Number(text);
	return text && Number.isSafeInteger(number) && number > 0 ? number : void 0;
}
function Head({ session, part }) {
	const known = state.sessions.get(session.id);
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("p", {
			class: "breadcrumb",
			children: [
				/* @__PURE__ */ a("a", {
					href: buildLink("sessions"),
					children: words.pages.sessions
				}),
				" / ",
				/* @__PURE__ */ a("a", {
					href: buildLink("session", [session.id]),
					children: words.inspect.open
				})
			]
		}),
		/* @__PURE__ */ a("h2", { children: nameSession({
			...session,
			first: known?.first ?? ""
		}) }),
		/* @__PURE__ */ a("nav", {
			class: "tabs",
			"aria-label": words.inspect.tabs,
			children: TABS.map((name) => /* @__PURE__ */ a("a", {
				href: buildLink("inspect", [session.id, name]),
				"aria-current": part === name ? "page" : void 0,
				children: words.inspect[name]
			}))
		})
	] });
}
export { InspectPage as default };
