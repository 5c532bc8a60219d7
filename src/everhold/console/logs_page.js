import { c as T, o as A, t as a, u as d } from "./preact.js";
import { M as buildLink, V as readStream, W as words, h as useFollow, i as Field, k as buildUrl, r as Choice, w as Problem } from "./shared.js";
var LEVELS = [
	"debug",
	"info",
	"warning",
	"error"
];
var MOST_LINES = 1e3;
var RETRY_MS = 2e3;
function LogsPage() {
	const [filter, setFilter] = d({
		level: "info",
		event: "",
		session: "",
		q: ""
	});
	const { lines, error, live } = useLines(filter);
	const end = T(null);
	const follow = useFollow(end, [lines.length, lines.at(-1)]);
	const change = (changes) => setFilter({
		...filter,
		...changes
	});
	return /* @__PURE__ */ a("div", {
		class: "fill",
		children: [
			/* @__PURE__ */ a("h2", { children: words.pages.logs }),
			/* @__PURE__ */ a("form", {
				class: "filters",
				onSubmit: (event) => event.preventDefault(),
				children: [
					/* @__PURE__ */ a(Choice, {
						label: words.logs.level,
						value: filter.level,
						options: LEVELS.map((it) => [it, it]),
						onChange: (level) => change({ level })
					}),
					/* @__PURE__ */ a(Field, {
						label: words.logs.event,
						value: filter.event,
						onInput: (event) => change({ event })
					}),
					/* @__PURE__ */ a(Field, {
						label: words.pages.inspect,
						value: filter.session,
						onInput: (session) => change({ session })
					}),
					/* @__PURE__ */ a(Field, {
						label: words.logs.words,
						value: filter.q,
						onInput: (q) => change({ q })
					})
				]
			}),
			/* @__PURE__ */ a(Problem, { error }),
			/* @__PURE__ */ a("p", {
				class: "hint",
				role: "status",
				children: live ? words.connection.live : words.loading
			}),
			/* @__PURE__ */ a("div", {
				class: "lines",
				ref: follow,
				tabIndex: 0,
				role: "log",
				"aria-label": words.pages.logs,
				"aria-live": "off",
				children: [/* @__PURE__ */ a("ol", { children: lines.map((line, index) => /* @__PURE__ */ a(LogLine, { line }, index)) }), /* @__PURE__ */ a("div", { ref: end })]
			})
		]
	});
}
function useLines(filter) {
	const [lines, show] = d([]);
	const [error, fail] = d(null);
	const [live, setLive] = d(false);
	A(() => {
		const abort = new AbortController();
		let timer = 0;
		const run = async () => {
			const found = [];
			let drawn = 0;
			const draw = () => {
				drawn ||= requestAnimationFrame(() => {
					drawn = 0;
					show(found.slice(-1e3));
				});
			};
			try {
				const status = await readStream(buildUrl("/api/logs", {
					...filter,
					stream: 1
				}), {
					signal: abort.signal,
					onEvent: ({ event, data }) => {
						if (event === "line") found.push(data);
						if (found.length > 2 * MOST_LINES) found.splice(0, MOST_LINES);
						if (event === "live") setLive(true);
						draw();
					}
				});
				fail(status ? new Error(words.logs.refused(status)) : null);
			} catch {}
			setLive(false);
			if (!abort.signal.aborted) timer = setTimeout(run, RETRY_MS);
		};
		timer = setTimeout(run, 200);
		return () => {
			clearTimeout(timer);
			abort.abort();
		};
	}, [filter]);
	return {
		lines,
		error,
		live
	};
}
function LogLine({ line }) {
	const { at, level, event, trace, ...fields } = line;
	const session = typeof fields.session === "string" ? fields.session : "";
	return /* @__PURE__ */ a("li", {
		class: `level-${level}`,
		children: [
			/* @__PURE__ */ a("time", { children: String(at).slice(11, 23) }),
			" ",
			/* @__PURE__ */ a("span", {
				class: "level",
				children: level
			}),
			" ",
			/* @__PURE__ */ a("strong", { children: event }),
			" ",
			Object.entries(fields).map(([name, value]) => name === "session" && session ? /* @__PURE__ */ a("a", {
				href: buildLink("inspect", [session]),
				children: `session=${session} `
			}, name) : /* @__PURE__ */ a("span", { children: `${name}=${typeof value === "string" ? value : JSON.stringify(value)} ` }, name)),
			trace && /* @__PURE__ */ a("pre", { children: trace })
		]
	});
}
export { LogsPage as default };
