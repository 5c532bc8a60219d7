import { f as $, i as x, o as A, p as Q, r as f, t as a, u as d } from "./preact.js";
import { C as state, E as followAddress, F as connection, I as login, L as language, M as LoginPage, N as OfferedLogin, O as place, P as EventStream, R as words, S as CopyButton, T as buildLink, f as SessionList, h as Conversation, m as LogView, p as nameSession, z as __vitePreload } from "./shared.js";
function page(name, load, { isForOperators = true, isInMenu = true } = {}) {
	return {
		name,
		load,
		isForOperators,
		isInMenu
	};
}
var PAGES = [page("sessions", () => __vitePreload(() => import("./sessions_page.js"), []), { isForOperators: false }), page("inspect", () => __vitePreload(() => import("./inspect_page.js"), []), {
	isForOperators: false,
	isInMenu: false
})];
function listMenu(caller) {
	return PAGES.filter((it) => it.isInMenu && (!it.isForOperators || caller?.operator));
}
function ConversationPage() {
	const [part, turn] = d("conversation");
	return /* @__PURE__ */ a("div", {
		class: "talk",
		"data-part": part,
		children: [
			/* @__PURE__ */ a(SessionList, { onChosen: () => turn("conversation") }),
			/* @__PURE__ */ a("main", { children: [/* @__PURE__ */ a(Head, {
				part,
				turn
			}), /* @__PURE__ */ a(Conversation, {})] }),
			/* @__PURE__ */ a(LogView, {})
		]
	});
}
function Head({ part, turn }) {
	const session = state.getOpen();
	const parts = [
		["sessions", words.sessions.name],
		["conversation", words.conversation.name],
		["log", words.log.name]
	];
	return /* @__PURE__ */ a("div", {
		class: "head",
		children: [
			/* @__PURE__ */ a("h2", {
				class: "title",
				children: session ? nameSession(session) : words.conversation.new
			}),
			session && /* @__PURE__ */ a("span", {
				class: "id",
				"data-session": session.id,
				children: [/* @__PURE__ */ a(CopyButton, {
					text: session.id,
					label: words.conversation.copyId,
					children: words.conversation.id
				}), /* @__PURE__ */ a("a", {
					class: "quiet",
					href: buildLink("inspect", [session.id]),
					children: words.sessions.details
				})]
			}),
			/* @__PURE__ */ a("nav", {
				class: "parts",
				"aria-label": words.conversation.parts,
				children: parts.map(([name, label]) => /* @__PURE__ */ a("button", {
					class: "quiet",
					"data-part": name,
					"aria-pressed": part === name,
					onClick: () => turn(name),
					children: label
				}))
			})
		]
	});
}
function App() {
	if (login.state.value !== "in") return /* @__PURE__ */ a(LoginPage, {});
	const page = PAGES.find((it) => it.name === place.value.page);
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a(OfferedLogin, {}), /* @__PURE__ */ a("div", {
		class: "console",
		children: [/* @__PURE__ */ a(Bar, {}), page ? /* @__PURE__ */ a(LazyPage, { page }, page.name) : /* @__PURE__ */ a(ConversationPage, {})]
	})] });
}
function Bar() {
	const { state: reached } = connection.value;
	const caller = state.caller.value;
	return /* @__PURE__ */ a("header", { children: [
		/* @__PURE__ */ a("h1", { children: [/* @__PURE__ */ a("img", {
			src: "/static/logo.svg",
			alt: "",
			width: "22",
			height: "22"
		}), " everhold"] }),
		/* @__PURE__ */ a(Menu, {}),
		/* @__PURE__ */ a("p", {
			class: `state ${reached}`,
			role: "status",
			children: [/* @__PURE__ */ a("span", {
				class: "dot",
				"aria-hidden": "true"
			}), words.connection[reached]]
		}),
		caller?.login && /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("span", {
			class: "who",
			children: caller.name
		}), /* @__PURE__ */ a("button", {
			class: "quiet logout",
			onClick: () => void login.logOut(),
			children: words.login.logOut
		})] })
	] });
}
function Menu() {
	const current = place.value.page === "session" ? "" : place.value.page;
	const pages = listMenu(state.caller.value);
	if (!pages.length) return null;
	return /* @__PURE__ */ a("nav", {
		class: "pages",
		"aria-label": words.pagesLabel,
		children: [/* @__PURE__ */ a("a", {
			href: "#/",
			"aria-current": current === "" ? "page" : void 0,
			children: words.conversation.name
		}), pages.map((page) => /* @__PURE__ */ a("a", {
			href: buildLink(page.name),
			"aria-current": current === page.name ? "page" : void 0,
			children: words.pages[page.name]
		}))]
	});
}
function LazyPage({ page }) {
	const [Loaded, setLoaded] = d(null);
	const [failed, fail] = d(false);
	A(() => {
		page.load().then((loaded) => setLoaded(() => loaded.default), () => fail(true));
	}, []);
	return /* @__PURE__ */ a("main", {
		class: "page",
		children: Loaded ? /* @__PURE__ */ a(Loaded, {}) : /* @__PURE__ */ a("p", {
			class: "hint",
			children: failed ? words.pageFailed : words.loading
		})
	});
}
var events = new EventStream({
	entry: (entry) => state.onEntry(entry),
	delta: (delta) => state.onDelta(delta),
	reset: (reset) => state.onReset(reset),
	hello: (restored) => state.onHello(restored)
});
document.documentElement.lang = language;
follow(login.state, (now) => {
	if (now !== "in") state.forgetCaller();
	events.restart();
});
follow(connection, (now) => {
	if (now.state !== "live") state.onDisconnected();
});
follow(place, () => {
	if (state.caller.value) state.followPlace();
});
followAddress(() => void login.useLink());
Q(/* @__PURE__ */ a(App, {}), document.getElementById("console"));
login.useLink().finally(() => events.run());
function follow(source, act) {
	x(() => {
		const { value } = source;
		f(() => act(value));
	});
}
