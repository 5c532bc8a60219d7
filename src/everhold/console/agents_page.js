import { A as call, M as buildLink, T as useResource, W as words, b as formatNumber, c as Loaded, l as Facts, y as formatMoney } from "./shared.js";
import { f as $, t as a } from "./preact.js";
function AgentsPage() {
	const agents = useResource((signal) => call("GET /api/agents", {}, void 0, signal), []);
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h2", { children: words.pages.agents }), /* @__PURE__ */ a(Loaded, {
		resource: agents,
		children: ({ agents: rows, default: standard }) => /* @__PURE__ */ a("div", {
			class: "cards-grid",
			children: rows.map((it) => /* @__PURE__ */ a(Agent, {
				agent: it,
				isDefault: it.name === standard
			}, it.name))
		})
	})] });
}
function Agent({ agent, isDefault }) {
	const { usd, tokens } = agent.budget;
	return /* @__PURE__ */ a("section", {
		class: "panel",
		children: [/* @__PURE__ */ a("h3", { children: [
			agent.name,
			" ",
			isDefault && /* @__PURE__ */ a("span", {
				class: "count",
				children: words.agents.default
			})
		] }), /* @__PURE__ */ a(Facts, { rows: [
			[words.agents.model, /* @__PURE__ */ a("a", {
				href: buildLink("models"),
				children: [agent.model, ...agent.fallback].join(" → ")
			})],
			[words.pages.memories, agent.memories.join(", ")],
			[words.pages.tools, agent.tools.join(", ")],
			[words.agents.missing, agent.missing.length > 0 && /* @__PURE__ */ a("span", {
				class: "bad",
				children: agent.missing.join(", ")
			})],
			[words.agents.budget, [usd ? formatMoney(usd) : "", tokens ? words.tokens(formatNumber(tokens)) : ""].filter(Boolean).join(", ")]
		] })]
	});
}
export { AgentsPage as default };
