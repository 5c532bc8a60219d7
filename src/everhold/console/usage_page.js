import { f as $, t as a, u as d } from "./preact.js";
import { A as call, T as useResource, W as words, b as formatNumber, c as Loaded, i as Field, o as Table, r as Choice, y as formatMoney } from "./shared.js";
var KEYS = [
	"day",
	"agent",
	"model",
	"person"
];
function UsagePage() {
	const [by, choose] = d("day");
	const [since, begin] = d("");
	const [until, end] = d("");
	const usage = useResource((signal) => call("GET /api/usage", {
		by,
		since,
		until
	}, void 0, signal), [
		by,
		since,
		until
	], (entry) => entry.kind === "ended");
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.usage }),
		/* @__PURE__ */ a("form", {
			class: "filters",
			onSubmit: (event) => event.preventDefault(),
			children: [
				/* @__PURE__ */ a(Choice, {
					label: words.usage.by,
					value: by,
					options: KEYS.map((it) => [it, words.usage.keys[it]]),
					onChange: (it) => choose(it)
				}),
				/* @__PURE__ */ a(Field, {
					label: words.usage.since,
					value: since,
					onInput: begin,
					type: "date"
				}),
				/* @__PURE__ */ a(Field, {
					label: words.usage.until,
					value: until,
					onInput: end,
					type: "date"
				})
			]
		}),
		/* @__PURE__ */ a(Loaded, {
			resource: usage,
			children: ({ rows }) => /* @__PURE__ */ a(Rows, {
				rows,
				by
			})
		})
	] });
}
function Rows({ rows, by }) {
	const most = Math.max(1, ...rows.map((it) => it.input + it.output));
	const total = rows.reduce((sum, it) => ({
		calls: sum.calls + it.calls,
		input: sum.input + it.input,
		output: sum.output + it.output,
		usd: sum.usd + it.usd
	}), {
		calls: 0,
		input: 0,
		output: 0,
		usd: 0
	});
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("p", { children: words.usage.total(formatNumber(total.calls), formatNumber(total.input), formatNumber(total.output), formatMoney(total.usd)) }), /* @__PURE__ */ a(Table, {
		label: words.pages.usage,
		rows,
		getKey: (it) => it.key,
		empty: words.usage.none,
		columns: [
			{
				title: words.usage.keys[by],
				show: (it) => it.key || words.usage.unknown
			},
			{
				title: words.usage.share,
				show: (it) => /* @__PURE__ */ a("span", {
					class: "bar wide",
					"aria-hidden": "true",
					children: /* @__PURE__ */ a("i", {
						class: "worked",
						style: { width: `${(it.input + it.output) / most * 100}%` }
					})
				})
			},
			{
				title: words.usage.calls,
				show: (it) => formatNumber(it.calls),
				isNumber: true
			},
			{
				title: words.usage.input,
				show: (it) => formatNumber(it.input),
				isNumber: true
			},
			{
				title: words.usage.cached,
				show: (it) => formatNumber(it.cached),
				isNumber: true
			},
			{
				title: words.usage.output,
				show: (it) => formatNumber(it.output),
				isNumber: true
			},
			{
				title: words.usage.cost,
				show: (it) => formatMoney(it.usd),
				isNumber: true
			}
		]
	})] });
}
export { UsagePage as default };
