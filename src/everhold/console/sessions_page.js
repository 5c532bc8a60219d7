import { t as a, u as d } from "./preact.js";
import { A as call, D as parseAddress, E as state, F as place, I as replacePlace, M as buildLink, S as formatShort, W as words, a as usePages, b as formatNumber, d as nameSession, i as Field, r as Choice, t as VirtualList, v as formatFull, w as Problem, y as formatMoney } from "./shared.js";
var PAGE_SIZE = 100;
var ROW_HEIGHT = 52;
var STATES = [
	"current",
	"archived",
	"failed",
	"all"
];
var TYPING_MS = 300;
function SessionsPage() {
	const [filter, setFilter] = d(readFilter);
	const list = usePages(async (before, signal) => {
		const found = await call("GET /api/sessions", {
			order: "active",
			limit: PAGE_SIZE,
			before,
			...filter
		}, void 0, signal);
		return {
			items: found.sessions,
			next: found.next
		};
	}, [filter], (entry) => entry.kind === "heard" || entry.kind === "changed");
	const change = (changes) => {
		const next = {
			...filter,
			...changes
		};
		setFilter(next);
		replacePlace(buildLink("sessions", [], {
			...next,
			state: next.state === "current" ? "" : next.state
		}));
	};
	return /* @__PURE__ */ a("div", {
		class: "fill",
		children: [
			/* @__PURE__ */ a("h2", { children: words.pages.sessions }),
			/* @__PURE__ */ a(Filters, {
				filter,
				change
			}),
			/* @__PURE__ */ a(Problem, { error: list.error }),
			/* @__PURE__ */ a("p", {
				class: "hint",
				role: "status",
				children: list.loading ? words.loading : words.sessions.shown(list.items.length, list.isComplete)
			}),
			/* @__PURE__ */ a(VirtualList, {
				label: words.pages.sessions,
				items: list.items,
				rowHeight: ROW_HEIGHT,
				getKey: (it) => it.id,
				onNearEnd: list.loadMore,
				children: (session) => /* @__PURE__ */ a(SessionRow, { session })
			})
		]
	});
}
function readFilter() {
	const { query } = place.value;
	const wanted = STATES.find((it) => it === query.get("state")) ?? "current";
	const get = (name) => query.get(name) ?? "";
	return {
		q: get("q"),
		agent: get("agent"),
		platform: get("platform"),
		person: get("person"),
		state: wanted
	};
}
function Filters({ filter, change }) {
	const agents = [["", words.sessions.anyAgent], ...state.agents.value.map((it) => [it, it])];
	return /* @__PURE__ */ a("form", {
		class: "filters",
		role: "search",
		onSubmit: (event) => event.preventDefault(),
		children: [
			/* @__PURE__ */ a(Typed, {
				label: words.sessions.search,
				value: filter.q,
				onSettled: (q) => change({ q })
			}),
			/* @__PURE__ */ a(Choice, {
				label: words.agent,
				value: filter.agent,
				options: agents,
				onChange: (agent) => change({ agent })
			}),
			/* @__PURE__ */ a(Typed, {
				label: words.sessions.platform,
				value: filter.platform,
				onSettled: (platform) => change({ platform })
			}),
			state.caller.value?.operator && /* @__PURE__ */ a(Typed, {
				label: words.sessions.person,
				value: filter.person,
				onSettled: (person) => change({ person })
			}),
			/* @__PURE__ */ a(Choice, {
				label: words.sessions.state,
				value: filter.state,
				options: STATES.map((it) => [it, words.sessions.states[it]]),
				onChange: (it) => change({ state: it })
			})
		]
	});
}
function Typed({ label, value, onSettled }) {
	const [text, write] = d(value);
	const [timer, setTimer] = d(0);
	const input = (next) => {
		write(next);
		clearTimeout(timer);
		setTimer(setTimeout(() => onSettled(next.trim()), TYPING_MS));
	};
	return /* @__PURE__ */ a(Field, {
		label,
		value: text,
		onInput: input,
		type: "search"
	});
}
function SessionRow({ session }) {
	const { platform } = parseAddress(session.address);
	const about = [
		session.agent,
		platform,
		session.person,
		words.sessions.turns(session.turns)
	].filter(Boolean).join(" · ");
	return /* @__PURE__ */ a("div", {
		class: "session-row",
		children: [
			/* @__PURE__ */ a("a", {
				class: "title",
				href: buildLink("session", [session.id]),
				children: nameSession(session)
			}),
			/* @__PURE__ */ a("span", {
				class: "hint about",
				children: about
			}),
			/* @__PURE__ */ a("span", {
				class: "hint cost",
				children: [words.tokens(formatNumber(session.tokens)), session.usd > 0 && ` · ${formatMoney(session.usd)}`]
			}),
			session.outcome === "failed" && /* @__PURE__ */ a("span", {
				class: "bad",
				children: words.sessions.failed
			}),
			session.archived && /* @__PURE__ */ a("span", {
				class: "hint",
				children: words.sessions.archived
			}),
			/* @__PURE__ */ a("time", {
				class: "hint",
				datetime: (/* @__PURE__ */ new Date(session.at * 1e3)).toISOString(),
				title: formatFull(session.at),
				children: formatShort(session.at)
			}),
			/* @__PURE__ */ a("a", {
				class: "details",
				href: buildLink("inspect", [session.id]),
				children: words.sessions.details
			})
		]
	});
}
export { SessionsPage as default };
