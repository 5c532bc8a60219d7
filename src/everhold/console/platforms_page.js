import { U as words, c as Loaded, j as buildLink, k as call, o as Table, s as useResource } from "./shared.js";
import { f as $, t as a } from "./preact.js";
function PlatformsPage() {
	const status = useResource((signal) => call("GET /api/status", {}, void 0, signal), [], (entry) => entry.kind === "heard");
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.platforms }),
		/* @__PURE__ */ a(Loaded, {
			resource: status,
			children: (found) => /* @__PURE__ */ a(Table, {
				label: words.pages.platforms,
				rows: found.accounts,
				getKey: (it) => `${it.platform} ${it.account}`,
				empty: words.platforms.none,
				columns: [
					{
						title: words.sessions.platform,
						show: (it) => it.platform
					},
					{
						title: words.platforms.account,
						show: (it) => it.account
					},
					{
						title: words.delivery.state,
						show: (it) => /* @__PURE__ */ a(State, { account: it })
					},
					{
						title: words.platforms.more,
						show: (it) => describeRest(it)
					}
				]
			})
		}),
		/* @__PURE__ */ a("p", { children: /* @__PURE__ */ a("a", {
			href: buildLink("people"),
			children: words.platforms.pairing
		}) })
	] });
}
function State({ account }) {
	if (account.error) return /* @__PURE__ */ a("span", {
		class: "bad",
		children: String(account.error)
	});
	return /* @__PURE__ */ a("span", {
		class: account.listening ? "good" : "bad",
		children: account.listening ? words.platforms.listening : words.platforms.silent
	});
}
function describeRest({ platform, account, listening, error, ...rest }) {
	return Object.entries(rest).filter(([, value]) => value !== null && value !== "" && value !== false && typeof value !== "object").map(([name, value]) => `${name}: ${String(value)}`).join(", ");
}
export { PlatformsPage as default };
