import { f as $, t as a, u as d } from "./preact.js";
import { S as formatSeconds, U as words, b as formatMoney, c as Loaded, k as call, l as Facts, s as useResource, u as Action, x as formatNumber } from "./shared.js";
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
		children: [
			/* @__PURE__ */ a("h3", { children: [
				agent.name,
				" ",
				isDefault && /* @__PURE__ */ a("span", {
					class: "count",
					children: words.agents.default
				})
			] }),
			/* @__PURE__ */ a(Facts, { rows: [
				[words.agents.model, [agent.model, ...agent.fallback].join(" → ")],
				[words.pages.memories, agent.memories.join(", ")],
				[words.pages.tools, agent.tools.join(", ")],
				[words.agents.missing, agent.missing.length > 0 && /* @__PURE__ */ a("span", {
					class: "bad",
					children: agent.missing.join(", ")
				})],
				[words.agents.budget, [usd ? formatMoney(usd) : "", tokens ? words.tokens(formatNumber(tokens)) : ""].filter(Boolean).join(", ")]
			] }),
			/* @__PURE__ */ a(ModelTest, { agent: agent.name })
		]
	});
}
function ModelTest({ agent }) {
	const [reply, show] = d("");
	const test = async () => {
		const began = performance.now();
		const answer = await call("POST /v1/chat/completions", {}, {
			model: agent,
			messages: [{
				role: "user",
				content: words.agents.testWords
			}]
		});
		show(answer.choices?.[0]?.message?.content ?? "");
		return words.agents.testDone(formatSeconds((performance.now() - began) / 1e3));
	};
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a(Action, {
		label: words.agents.test,
		act: test
	}), reply && /* @__PURE__ */ a("pre", {
		class: "block",
		children: reply
	})] });
}
export { AgentsPage as default };
