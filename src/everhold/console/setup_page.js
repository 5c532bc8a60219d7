import { A as call, T as useResource, W as words, c as Loaded } from "./shared.js";
import { t as AccountForm } from "./account_form.js";
import { t as ModelForm } from "./model_form.js";
import { f as $, t as a } from "./preact.js";
function SetupPage() {
	const setup = useResource((signal) => call("GET /api/setup", {}, void 0, signal), []);
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h2", { children: words.pages.setup }), /* @__PURE__ */ a(Loaded, {
		resource: setup,
		children: (found) => {
			const accounts = found.platforms.flatMap((it) => it.accounts.map((account) => `${it.name} ${account}`));
			return /* @__PURE__ */ a("ol", {
				class: "steps",
				children: [
					/* @__PURE__ */ a(Step, {
						title: words.setup.model,
						done: found.is_offline ? "" : words.setup.modelThere,
						children: [/* @__PURE__ */ a("p", {
							class: "hint",
							children: found.is_offline ? words.setup.offline : words.setup.anotherModel
						}), /* @__PURE__ */ a(ModelForm, {
							setup: found,
							onDone: setup.reload
						})]
					}),
					/* @__PURE__ */ a(Step, {
						title: words.setup.platform,
						done: accounts.join(", "),
						children: [/* @__PURE__ */ a("p", {
							class: "hint",
							children: words.setup.platformAbout
						}), /* @__PURE__ */ a(AccountForm, {
							setup: found,
							onDone: setup.reload
						})]
					}),
					/* @__PURE__ */ a(Step, {
						title: words.setup.hello,
						done: "",
						children: /* @__PURE__ */ a("a", {
							href: "#/",
							children: words.setup.toConversation
						})
					})
				]
			});
		}
	})] });
}
function Step({ title, done, children }) {
	return /* @__PURE__ */ a("li", {
		class: "panel",
		children: [/* @__PURE__ */ a("h3", { children: [
			title,
			" ",
			done && /* @__PURE__ */ a("span", {
				class: "good",
				children: ["✓ ", done]
			})
		] }), children]
	});
}
export { SetupPage as default };
