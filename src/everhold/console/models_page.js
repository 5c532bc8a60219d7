import { f as $, t as a, u as d } from "./preact.js";
import { A as call, T as useResource, W as words, c as Loaded, l as Facts, s as Action } from "./shared.js";
import { t as ModelForm } from "./model_form.js";
import { n as ModelTestResult } from "./test_result.js";
function ModelsPage() {
	const models = useResource((signal) => call("GET /api/models", {}, void 0, signal), []);
	const setup = useResource((signal) => call("GET /api/setup", {}, void 0, signal), []);
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.models }),
		/* @__PURE__ */ a(Loaded, {
			resource: models,
			children: ({ models: rows }) => /* @__PURE__ */ a("div", {
				class: "cards-grid",
				children: rows.map((it) => /* @__PURE__ */ a(Model, { model: it }, it.name))
			})
		}),
		/* @__PURE__ */ a("h3", { children: words.setup.anotherModel }),
		/* @__PURE__ */ a(Loaded, {
			resource: setup,
			children: (found) => /* @__PURE__ */ a(ModelForm, {
				setup: found,
				onDone: models.reload
			})
		})
	] });
}
function Model({ model }) {
	const [result, show] = d(null);
	return /* @__PURE__ */ a("section", {
		class: "panel",
		children: [
			/* @__PURE__ */ a("h3", { children: model.name }),
			/* @__PURE__ */ a(Facts, { rows: [
				[words.setup.provider, model.provider],
				[words.setup.modelName, model.model],
				[words.setup.url, model.url],
				[words.setup.key, model.key_env],
				[words.agents.missing, model.missing.length > 0 && /* @__PURE__ */ a("span", {
					class: "bad",
					children: model.missing.join(", ")
				})],
				[words.pages.agents, model.agents.join(", ")]
			] }),
			/* @__PURE__ */ a(Action, {
				label: words.agents.test,
				act: async () => show(await call("POST /api/models/{name}/test", { name: model.name }))
			}),
			result && /* @__PURE__ */ a(ModelTestResult, { result })
		]
	});
}
export { ModelsPage as default };
