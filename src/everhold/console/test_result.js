import { W as words, x as formatSeconds } from "./shared.js";
import { t as a } from "./preact.js";
function ModelTestResult({ result }) {
	if (!result.works) return /* @__PURE__ */ a(Failure, {
		message: result.message,
		remedy: result.remedy
	});
	return /* @__PURE__ */ a("p", {
		class: "good",
		role: "status",
		children: [
			words.setup.modelWorks(result.reply.slice(0, 200), formatSeconds(result.seconds)),
			" ",
			result.written && words.setup.modelInUse
		]
	});
}
function Failure({ message, remedy }) {
	return /* @__PURE__ */ a("div", {
		class: "problem",
		role: "alert",
		children: [/* @__PURE__ */ a("p", { children: message }), remedy && /* @__PURE__ */ a("p", {
			class: "remedy",
			children: remedy
		})]
	});
}
export { ModelTestResult as n, Failure as t };
