import { f as $, t as a, u as d } from "./preact.js";
import { A as call, W as words, i as Field, r as Choice, s as Action } from "./shared.js";
import { n as ModelTestResult } from "./test_result.js";
function ModelForm({ setup, onDone }) {
	const [provider, choose] = d(setup.providers[0]?.name ?? "");
	const [url, setUrl] = d("");
	const [name, setName] = d("");
	const [key, setKey] = d("");
	const [result, show] = d(null);
	const usual = setup.providers.find((it) => it.name === provider);
	const change = (act) => (value) => {
		act(value);
		show(null);
	};
	const test = async () => {
		const answer = await call("POST /api/setup/model", {}, {
			provider,
			url,
			name,
			key,
			write: true
		});
		show(answer);
		if (!answer.written) return;
		setKey("");
		onDone();
	};
	return /* @__PURE__ */ a("form", {
		class: "stack",
		onSubmit: (event) => event.preventDefault(),
		children: [/* @__PURE__ */ a("div", {
			class: "row",
			children: [
				/* @__PURE__ */ a(Choice, {
					label: words.setup.provider,
					value: provider,
					options: setup.providers.map((it) => [it.name, words.setup.providers[it.name] ?? it.about]),
					onChange: change(choose)
				}),
				usual?.url && /* @__PURE__ */ a($, { children: [
					/* @__PURE__ */ a(Field, {
						label: words.setup.url,
						value: url,
						placeholder: usual.url,
						onInput: change(setUrl)
					}),
					/* @__PURE__ */ a(Field, {
						label: words.setup.modelName,
						value: name,
						placeholder: usual.example,
						onInput: change(setName)
					}),
					/* @__PURE__ */ a(Field, {
						label: words.setup.key,
						value: key,
						type: "password",
						onInput: change(setKey)
					})
				] }),
				/* @__PURE__ */ a(Action, {
					label: words.setup.useModel,
					disabled: Boolean(usual?.url) && !name.trim(),
					act: test
				})
			]
		}), result && /* @__PURE__ */ a(ModelTestResult, { result })]
	});
}
export { ModelForm as t };
