import { A as call, F as place, M as buildLink, T as useResource, W as words, a as usePages, c as Loaded, o as Table, s as Action, v as formatFull, w as Problem } from "./shared.js";
import { f as $, t as a } from "./preact.js";
function DeadLettersPage() {
	const { query } = place.value;
	const filter = {
		consumer: query.get("consumer") ?? "",
		cause: query.get("cause") ?? ""
	};
	const causes = useResource((signal) => call("GET /api/dead-letters/causes", {}, void 0, signal), []);
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.deadLetters }),
		/* @__PURE__ */ a("p", {
			class: "hint",
			children: words.deadLetters.about
		}),
		/* @__PURE__ */ a(Loaded, {
			resource: causes,
			children: ({ causes: rows }) => /* @__PURE__ */ a(Causes, {
				rows,
				reload: causes.reload
			})
		}),
		(filter.consumer || filter.cause) && /* @__PURE__ */ a(Letters, { filter })
	] });
}
function Causes({ rows, reload }) {
	return /* @__PURE__ */ a(Table, {
		label: words.deadLetters.causes,
		rows,
		getKey: (it) => `${it.consumer} ${it.reason}`,
		empty: words.deadLetters.none,
		columns: [
			{
				title: words.delivery.consumer,
				show: (it) => it.consumer
			},
			{
				title: words.delivery.reason,
				show: (it) => /* @__PURE__ */ a("a", {
					href: buildLink("deadLetters", [], {
						consumer: it.consumer,
						cause: it.reason
					}),
					children: it.reason || words.deadLetters.noReason
				})
			},
			{
				title: words.deadLetters.count,
				show: (it) => it.count,
				isNumber: true
			},
			{
				title: words.deadLetters.doubtful,
				show: (it) => it.in_doubt || "",
				isNumber: true
			},
			{
				title: words.deadLetters.latest,
				show: (it) => formatFull(it.last_at)
			},
			{
				title: words.actions,
				show: (it) => /* @__PURE__ */ a(Settle, {
					filter: {
						consumer: it.consumer,
						cause: it.reason
					},
					count: it.count,
					doubtful: it.in_doubt,
					reload
				})
			}
		]
	});
}
function Settle({ filter, count, doubtful, reload }) {
	return /* @__PURE__ */ a("div", {
		class: "row",
		children: [/* @__PURE__ */ a(Action, {
			label: words.deadLetters.resend,
			confirm: doubtful ? words.deadLetters.mayRepeat(doubtful) : void 0,
			act: async () => words.deadLetters.resent((await call("POST /api/dead-letters/replay", {}, filter)).replayed),
			onDone: reload
		}), /* @__PURE__ */ a(Action, {
			label: words.deadLetters.drop,
			confirm: words.deadLetters.confirmDrop(count),
			act: async () => words.deadLetters.dropped((await call("POST /api/dead-letters/drop", {}, filter)).dropped),
			onDone: reload
		})]
	});
}
function Letters({ filter }) {
	const list = usePages(async (after, signal) => {
		const found = await call("GET /api/dead-letters", {
			...filter,
			after,
			limit: 100
		}, void 0, signal);
		return {
			items: found.dead_letters,
			next: found.next
		};
	}, [filter.consumer, filter.cause]);
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h3", { children: [filter.consumer, filter.cause].filter(Boolean).join(" · ") }),
		/* @__PURE__ */ a(Problem, { error: list.error }),
		/* @__PURE__ */ a(Table, {
			label: words.deadLetters.list,
			rows: list.items,
			getKey: (it) => it.id,
			empty: list.loading ? words.loading : words.deadLetters.none,
			columns: buildColumns(list.reload)
		}),
		!list.isComplete && /* @__PURE__ */ a("button", {
			class: "plain-button",
			disabled: list.loading,
			onClick: list.loadMore,
			children: words.more
		})
	] });
}
function buildColumns(reload) {
	return [
		{
			title: words.delivery.at,
			show: (it) => formatFull(it.at)
		},
		{
			title: words.pages.inspect,
			show: (it) => /* @__PURE__ */ a("a", {
				href: buildLink("inspect", [it.session, "entry"], { at: String(it.seq) }),
				children: words.delivery.entry(it.seq)
			})
		},
		{
			title: words.delivery.state,
			show: (it) => it.in_doubt ? words.delivery.states.in_doubt : words.delivery.states.dead
		},
		{
			title: words.delivery.reason,
			show: (it) => it.reason
		},
		{
			title: words.actions,
			show: (it) => /* @__PURE__ */ a(Settle, {
				filter: { ids: [it.id] },
				count: 1,
				doubtful: it.in_doubt ? 1 : 0,
				reload
			})
		}
	];
}
export { DeadLettersPage as default };
