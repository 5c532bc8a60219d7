import { A as call, M as buildLink, S as formatShort, T as useResource, W as words, b as formatNumber, c as Loaded, l as Facts, o as Table, s as Action, v as formatFull } from "./shared.js";
import { f as $, t as a } from "./preact.js";
function HealthPage() {
	const status = useResource((signal) => call("GET /api/status", {}, void 0, signal), [], (entry) => entry.kind === "ended");
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.health }),
		/* @__PURE__ */ a(Loaded, {
			resource: status,
			children: (found) => /* @__PURE__ */ a(Status, {
				status: found,
				reload: status.reload
			})
		}),
		/* @__PURE__ */ a(Action, {
			label: words.refresh,
			act: async () => status.reload()
		})
	] });
}
function Status({ status, reload }) {
	const problems = [
		...status.refused,
		...status.problems,
		...status.risks
	];
	const isFine = !problems.length && !status.waiting.length && !status.given_up.length && !status.store && !status.dead_letters && !status.in_doubt;
	return /* @__PURE__ */ a($, { children: [
		status.store && /* @__PURE__ */ a("p", {
			class: "problem",
			children: status.store
		}),
		isFine && /* @__PURE__ */ a("p", {
			class: "good",
			children: words.health.fine
		}),
		/* @__PURE__ */ a(Facts, { rows: [
			[words.hosts.version, status.version],
			[words.hosts.host, status.host],
			[words.health.store, status.store_kind],
			[words.health.since, formatFull(status.since)],
			[words.health.draining, status.draining && words.hosts.draining],
			[words.health.pending, formatNumber(status.pending)],
			[words.health.held, status.held > 0 && formatNumber(status.held)],
			[words.pages.deadLetters, status.dead_letters > 0 && /* @__PURE__ */ a("a", {
				href: buildLink("deadLetters"),
				children: status.dead_letters
			})],
			[words.deadLetters.doubtful, status.in_doubt > 0 && /* @__PURE__ */ a("a", {
				href: buildLink("deadLetters"),
				children: status.in_doubt
			})],
			[words.health.restart, status.restart.join(", ")]
		] }),
		problems.length > 0 && /* @__PURE__ */ a(Problems, { rows: problems }),
		/* @__PURE__ */ a("h3", { children: words.health.waiting }),
		/* @__PURE__ */ a(Table, {
			label: words.health.waiting,
			rows: status.waiting,
			getKey: (it) => it.consumer,
			empty: words.health.nothingWaits,
			columns: [
				{
					title: words.delivery.consumer,
					show: (it) => it.consumer
				},
				{
					title: words.pages.sessions,
					show: (it) => formatNumber(it.sessions),
					isNumber: true
				},
				{
					title: words.memories.since,
					show: (it) => it.since ? formatShort(it.since) : ""
				},
				{
					title: words.health.failures,
					show: (it) => it.attempts || "",
					isNumber: true
				},
				{
					title: words.delivery.reason,
					show: (it) => it.error
				}
			]
		}),
		status.waiting.some((it) => it.error) && /* @__PURE__ */ a(Action, {
			label: words.conversation.tryNow,
			act: async () => words.health.retried((await call("POST /api/retry")).retried),
			onDone: reload
		}),
		status.given_up.map((it) => /* @__PURE__ */ a("p", {
			class: "bad",
			children: [
				words.health.givenUp(it.starts),
				" ",
				/* @__PURE__ */ a("a", {
					href: buildLink("session", [it.session]),
					children: words.inbox.open
				})
			]
		}))
	] });
}
function Problems({ rows }) {
	return /* @__PURE__ */ a("ul", {
		class: "traces",
		children: rows.map((it) => /* @__PURE__ */ a("li", { children: [/* @__PURE__ */ a("p", { children: [
			it.key && /* @__PURE__ */ a("code", { children: it.key }),
			" ",
			it.message
		] }), /* @__PURE__ */ a("p", {
			class: "hint",
			children: [it.remedy, it.line ? words.configuration.line(it.line) : ""].filter(Boolean).join(" · ")
		})] }))
	});
}
export { Problems as n, HealthPage as t };
