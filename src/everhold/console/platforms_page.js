import { f as $, t as a, u as d } from "./preact.js";
import { A as call, M as buildLink, T as useResource, W as words, c as Loaded, o as Table, r as Choice } from "./shared.js";
import { n as InvitationMaker, t as AccountForm } from "./account_form.js";
function PlatformsPage() {
	const status = useResource((signal) => call("GET /api/status", {}, void 0, signal), [], (entry) => entry.kind === "heard");
	const setup = useResource((signal) => call("GET /api/setup", {}, void 0, signal), []);
	const reload = () => {
		status.reload();
		setup.reload();
	};
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
		}) }),
		status.value?.accounts.length ? /* @__PURE__ */ a(Invitations, { accounts: status.value.accounts }) : null,
		/* @__PURE__ */ a("h3", { children: words.setup.platform }),
		/* @__PURE__ */ a(Loaded, {
			resource: setup,
			children: (found) => /* @__PURE__ */ a(AccountForm, {
				setup: found,
				onDone: reload
			})
		})
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
function Invitations({ accounts }) {
	const [chosen, choose] = d("");
	const account = accounts.find((it) => `${it.platform} ${it.account}` === chosen) ?? accounts[0];
	const names = accounts.map((it) => `${it.platform} ${it.account}`);
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h3", { children: words.setup.invite }),
		accounts.length > 1 && /* @__PURE__ */ a(Choice, {
			label: words.platforms.account,
			value: chosen || names[0],
			options: names.map((it) => [it, it]),
			onChange: choose
		}),
		/* @__PURE__ */ a(InvitationMaker, {
			platform: account.platform,
			account: account.account
		}, chosen)
	] });
}
export { PlatformsPage as default };
