import { a as y, f as $, i as x, o as A, p as Q, r as f, t as a, u as d } from "./preact.js";
import { B as connection, E as state, F as place, G as __vitePreload, H as login, L as LoginPage, M as buildLink, N as followAddress, R as OfferedLogin, U as language, W as words, d as nameSession, f as LogView, m as CopyButton, p as Conversation, u as SessionList, z as EventStream } from "./shared.js";
function forAll(name, group, load) {
	return {
		name,
		group,
		load,
		isForOperators: false
	};
}
function forOperators(name, group, load) {
	return {
		name,
		group,
		load,
		isForOperators: true
	};
}
var PAGES = [
	forAll("inbox", "talk", () => __vitePreload(() => import("./inbox_page2.js"), [])),
	forAll("sessions", "talk", () => __vitePreload(() => import("./sessions_page.js"), [])),
	forAll("schedules", "talk", () => __vitePreload(() => import("./schedules_page.js"), [])),
	forAll("memories", "knowledge", () => __vitePreload(() => import("./memories_page.js"), [])),
	forOperators("people", "knowledge", () => __vitePreload(() => import("./people_page.js"), [])),
	forOperators("setup", "set_up", () => __vitePreload(() => import("./setup_page.js"), [])),
	forOperators("models", "set_up", () => __vitePreload(() => import("./models_page.js"), [])),
	forOperators("agents", "set_up", () => __vitePreload(() => import("./agents_page.js"), [])),
	forOperators("platforms", "set_up", () => __vitePreload(() => import("./platforms_page.js"), [])),
	forOperators("tools", "set_up", () => __vitePreload(() => import("./tools_page.js"), [])),
	forOperators("configuration", "set_up", () => __vitePreload(() => import("./configuration_page.js"), [])),
	forAll("logins", "set_up", () => __vitePreload(() => import("./logins_page.js"), [])),
	forOperators("health", "watch", () => __vitePreload(() => import("./health_page.js"), [])),
	forOperators("deadLetters", "watch", () => __vitePreload(() => import("./dead_letters_page.js"), [])),
	forOperators("usage", "watch", () => __vitePreload(() => import("./usage_page.js"), [])),
	forOperators("audit", "watch", () => __vitePreload(() => import("./audit_page.js"), [])),
	forOperators("logs", "watch", () => __vitePreload(() => import("./logs_page.js"), [])),
	forOperators("hosts", "watch", () => __vitePreload(() => import("./hosts_page.js"), [])),
	forOperators("backups", "watch", () => __vitePreload(() => import("./backups_page.js"), [])),
	forAll("inspect", null, () => __vitePreload(() => import("./inspect_page.js"), []))
];
var PRELOAD_AFTER_MS = 1e3;
var GROUPS = [
	"talk",
	"knowledge",
	"set_up",
	"watch"
];
function listPages(caller, group) {
	return PAGES.filter((page) => page.group === group && (!page.isForOperators || caller?.operator));
}
function preloadPages(caller) {
	const wanted = PAGES.filter((page) => !page.isForOperators || caller.operator);
	setTimeout(async () => {
		for (const page of wanted) await page.load().catch(() => void 0);
	}, PRELOAD_AFTER_MS);
}
var open = y(false);
function MenuButton() {
	return /* @__PURE__ */ a("button", {
		class: "quiet menu-button",
		"aria-expanded": open.value,
		"aria-controls": "menu",
		onClick: () => open.value = !open.value,
		children: words.menu
	});
}
function Menu() {
	const { page } = place.value;
	const caller = state.caller.value;
	const close = () => open.value = false;
	return /* @__PURE__ */ a("nav", {
		id: "menu",
		class: `pages${open.value ? " open" : ""}`,
		"aria-label": words.pagesLabel,
		onClick: close,
		children: GROUPS.map((group) => {
			const pages = listPages(caller, group);
			if (!pages.length && group !== "talk") return null;
			return /* @__PURE__ */ a("section", {
				"aria-label": words.groups[group],
				children: [
					/* @__PURE__ */ a("h2", { children: words.groups[group] }),
					group === "talk" && /* @__PURE__ */ a("a", {
						href: state.openId.value ? buildLink("session", [state.openId.value]) : "#/",
						"aria-current": page === "" || page === "session" ? "page" : void 0,
						children: words.conversation.name
					}),
					pages.map(({ name }) => /* @__PURE__ */ a("a", {
						href: buildLink(name),
						"aria-current": page === name ? "page" : void 0,
						children: words.pages[name]
					}, name))
				]
			}, group);
		})
	});
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
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a(OfferedLogin, {}), /* @__PURE__ */ a("div", {
		class: "console",
		children: [
			/* @__PURE__ */ a(Bar, {}),
			/* @__PURE__ */ a(Menu, {}),
			/* @__PURE__ */ a(Content, {})
		]
	})] });
}
function Content() {
	const page = PAGES.find((it) => it.name === place.value.page);
	const caller = state.caller.value;
	if (!page) return /* @__PURE__ */ a(ConversationPage, {});
	if (caller && page.isForOperators && !caller.operator) return /* @__PURE__ */ a("main", {
		class: "page",
		children: [/* @__PURE__ */ a("h2", { children: words.pages[page.name] }), /* @__PURE__ */ a("p", {
			class: "hint",
			children: words.onlyOperators
		})]
	});
	return /* @__PURE__ */ a(LazyPage, { page }, page.name);
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
		/* @__PURE__ */ a(MenuButton, {}),
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
function LazyPage({ page }) {
	const [Loaded, setLoaded] = d(null);
	const [failed, fail] = d(false);
	const isLive = state.isLive;
	A(() => {
		page.load().then((loaded) => setLoaded(() => loaded.default), () => fail(true));
	}, []);
	A(() => {
		if (failed && isLive) location.reload();
	}, [failed, isLive]);
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
follow(state.caller, (caller) => {
	if (caller) preloadPages(caller);
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
