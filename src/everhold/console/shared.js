import { a as y, c as T, d as w, f as $, h as x, l as b, m as k, n as count, o as A, s as P, t as a, u as d } from "./preact.js";
var en = {
	agent: "Agent",
	copy: "Copy",
	copied: "copied",
	copyCode: "Copy code",
	loading: "Loading…",
	pageFailed: "This page could not be loaded. It opens when everhold answers again.",
	onlyOperators: "Only operators see this page.",
	pagesLabel: "Pages",
	table: "Table",
	connection: {
		connecting: "connecting…",
		live: "live",
		offline: "offline · reconnecting",
		denied: "not allowed"
	},
	pages: {
		sessions: "Sessions",
		inspect: "Session",
		inbox: "Inbox",
		deadLetters: "Dead letters",
		memories: "Memories",
		people: "People",
		schedules: "Schedules",
		setup: "First steps",
		models: "Models",
		agents: "Agents",
		platforms: "Platforms",
		tools: "Tools",
		usage: "Usage",
		audit: "Audit",
		logs: "Logs",
		hosts: "Hosts",
		backups: "Backups",
		health: "Health",
		configuration: "Configuration",
		logins: "Logins"
	},
	actions: "Actions",
	refresh: "Refresh",
	more: "Show more",
	menu: "Menu",
	groups: {
		talk: "Talk",
		knowledge: "Knowledge",
		set_up: "Set up",
		watch: "Watch"
	},
	cancel: "Cancel",
	tryAgain: "Try again",
	earlier: "Show earlier",
	tokens: (number) => `${number} tokens`,
	problem: {
		unreachable: "everhold does not answer.",
		logInAgain: "Log in again"
	},
	login: {
		logIn: "Log in",
		logOut: "Log out",
		ended: "Your login has ended.",
		howBefore: "Run",
		howAfter: "on the machine of the gateway. It makes a link that logs you in.",
		token: "Or enter your token",
		noAnswer: "everhold does not answer",
		anotherLogin: "Another login",
		offer: (message) => `You opened a login link: ${message}. Use it only if you made it.`,
		useLink: "Use the link",
		stay: "Stay logged in",
		refuse: "Do not log in"
	},
	sessions: {
		name: "Sessions",
		new: "New conversation",
		working: "working",
		search: "Search titles and words",
		platform: "Platform",
		person: "Person",
		state: "Show",
		states: {
			current: "current",
			archived: "archived",
			failed: "last turn failed",
			all: "all"
		},
		anyAgent: "any",
		shown: (number, all) => all ? count(number, "session", "sessions") : `the latest ${number} sessions`,
		turns: (turns) => count(turns, "turn", "turns"),
		failed: "failed",
		archived: "archived",
		details: "Details"
	},
	inspect: {
		tabs: "Parts of the session",
		open: "Conversation",
		timeline: "Timeline",
		context: "Context",
		why: "Reasons",
		manage: "Manage"
	},
	timeline: {
		show: "Show",
		filters: {
			all: "everything",
			failed: "failed",
			tools: "with tools",
			memory: "with notes",
			compressions: "compressions"
		},
		empty: "No operation matches.",
		types: {
			turn: "turn",
			compression: "compression",
			command: "command",
			job: "job"
		},
		outcomes: {
			running: "running",
			done: "done",
			failed: "failed",
			stopped: "stopped",
			interrupted: "interrupted",
			released: "released",
			refused: "refused",
			erased: "erased"
		},
		shrunk: (before, after) => `${before} → ${after} tokens`,
		attempts: (attempts) => `${attempts} attempts`,
		operation: (op, first, last) => `Operation ${op}, entries ${first} to ${last}`,
		trigger: (trigger) => `trigger: ${trigger}`,
		times: (waited, worked) => `waited ${waited}, worked ${worked}`,
		used: (input, cached, output) => `${input} tokens in (${cached} cached), ${output} out`,
		thought: (seq) => `Model call ${seq}`,
		differsFrom: (seq) => `difference from ${seq}`,
		showReplaced: "Show what it replaced",
		replaced: (messages) => `Replaced: ${count(messages, "message", "messages")}`,
		by: "By",
		undo: "Undo",
		undoTurn: "The turn leaves the context. Nothing is deleted."
	},
	context: {
		at: "Model call",
		nextTurn: "the next turn",
		compareWith: "Compare with",
		nothing: "nothing",
		next: "What the model would be shown now.",
		exact: "Exactly what the model was shown: it matches the recorded digest.",
		notRecorded: "No digest was recorded for this call.",
		roles: {
			user: "user",
			assistant: "agent",
			tool: "tool",
			system: "system"
		},
		parts: {
			system: "Instructions",
			tools: "Tools",
			compression: "Summary",
			pins: "Pins",
			exchange: "Exchange",
			recall: "Recalled"
		},
		entries: (first, last) => first === last ? `entry ${first}` : `entries ${first} to ${last}`,
		difference: (before, after) => `${before} tokens before, ${after} after.`,
		change: "Change",
		changes: {
			same: "same",
			added: "added",
			dropped: "dropped",
			compressed: "compressed",
			changed: "changed"
		},
		part: "Part",
		before: "Before",
		after: "After"
	},
	why: {
		answer: "Answer",
		audience: "Present",
		budget: "Room for memory",
		spent: (tokens, budget) => `${tokens} of ${budget} tokens`,
		memories: "Asked",
		silent: "Without an answer",
		toContext: "Show the context of this answer",
		nothing: "No memory was shown to the model for this answer.",
		facts: "Facts about the people present",
		shown: "Recalled",
		leftOut: "Found and left out",
		shadow: "Found by memories in shadow mode, not shown to the model"
	},
	delivery: {
		title: "Deliveries",
		entry: (seq) => `Entry ${seq}`,
		none: "No platform or memory has to receive this entry.",
		consumer: "To",
		state: "State",
		states: {
			waiting: "waiting",
			in_flight: "being sent",
			delivered: "delivered",
			in_doubt: "in doubt",
			dead: "given up",
			replaying: "being sent again",
			passed: "nothing to send"
		},
		remote: "Its id there",
		at: "Time",
		reason: "Reason"
	},
	manage: {
		id: "Id",
		address: "Address",
		entries: "Entries",
		lastEntry: "Last entry",
		title: "Title",
		rename: "Rename",
		archive: "Archive",
		unarchive: "Show again",
		previewCompression: "Preview a compression",
		compress: "Compress",
		confirmCompress: "The older part of the context is replaced by a summary. You can undo it.",
		branch: "Branch",
		branched: "The branch is made; the conversation names it.",
		export: "Export",
		erase: "Erase this session",
		eraseAbout: "Erases all words of this session from the log, also in branches. This cannot be undone.",
		planErasure: "Show what would be erased",
		records: "Records that repeat them",
		running: "Turns that end",
		branches: "Branches",
		delivered: (entries) => `has received ${count(entries, "entry", "entries")}`,
		eraseElsewhere: "What a platform or a memory has received stays there. To delete it too, forget the person.",
		confirmErase: "This cannot be undone.",
		erased: (entries) => `${count(entries, "entry", "entries")} erased`
	},
	conversation: {
		name: "Conversation",
		new: "New conversation",
		parts: "Parts of the page",
		messages: "Messages",
		id: "Copy id",
		copyId: "Copy the id of the session",
		earlier: "Show earlier",
		emptyTitle: "Send a message",
		emptyText: "everhold commits your message before it acknowledges it, and answers it once. The log of this conversation is shown beside it.",
		messageTo: (agent) => `Message to ${agent}`,
		send: "Send",
		stop: "Stop",
		pin: "Pin",
		unpin: "Unpin",
		pinned: "pinned",
		why: "Why?",
		context: "Context",
		pinEntry: (pinned, seq) => `${pinned ? "Unpin" : "Pin"} entry ${seq}`,
		attach: "Attach files",
		detach: (name) => `Remove ${name}`,
		uploading: "uploading…",
		file: "file",
		readNext: "read next",
		notAccepted: (reason) => `not accepted: ${reason}`,
		dismiss: "Dismiss",
		accepted: "accepted",
		sending: "sending…",
		waitsForGateway: "waits until everhold is reachable",
		notConnected: (time) => `Not connected since ${time}. What was accepted is kept.`,
		isWorking: (agent) => `${agent} is working`,
		attempts: (attempts) => count(attempts, "attempt has failed.", "attempts have failed."),
		nextTry: (time) => `The next one is at ${time}.`,
		tryNow: "Try now",
		inTerminal: (id) => `This conversation is in a terminal: everhold chat --session ${id}. You can read it here.`,
		onPlatform: (platform) => `This conversation is on ${platform}. You can read it here.`
	},
	inbox: {
		empty: "Nothing waits for you.",
		open: "Open",
		kinds: {
			pairing: "Access",
			tools: "Tools",
			dead_letters: "Dead letters",
			in_doubt: "In doubt",
			config: "Configuration refused",
			problem: "Problem",
			given_up: "Given up",
			failing: "Failing",
			erasure: "Forgetting",
			budget: "Budget",
			approval: "Approval"
		}
	},
	deadLetters: {
		about: "Deliveries that were refused for good, or whose outcome is unknown. The log keeps their entries.",
		causes: "Reasons",
		list: "Deliveries",
		none: "There are none.",
		noReason: "no reason",
		count: "Number",
		doubtful: "In doubt",
		latest: "Latest",
		resend: "Send again",
		mayRepeat: (number) => `${count(number, "delivery", "deliveries")} may have arrived and would arrive twice.`,
		resent: (number) => `${number} sent again`,
		drop: "Drop",
		confirmDrop: (number) => `${count(number, "delivery is", "deliveries are")} never sent.`,
		dropped: (number) => `${number} dropped`
	},
	memories: {
		delivery: "Delivery to memories",
		memory: "Memory",
		none: "No agent has a memory.",
		available: "available",
		unavailable: "not available",
		backlog: "Waiting",
		since: "Since",
		sent: "Sent",
		planResend: "Count the last day",
		resend: "Send the last day again",
		confirmResend: "The memory receives the entries of the last day again.",
		resent: (items, sessions) => `${count(items, "item", "items")} of ${count(sessions, "session", "sessions")}`,
		search: "Search",
		query: "Words",
		find: "Search",
		defaultAgent: "default agent",
		silent: (names) => `No answer from ${names}.`,
		facts: "Facts",
		hits: "Found in memories",
		nothing: "Nothing was found.",
		validUntil: (time) => `valid until ${time}`,
		replacedBy: (id) => `replaced by ${id}`,
		comparison: "Comparison",
		comparisonAbout: "What each memory found for the latest questions, and what of it the answers used.",
		compare: "Compare",
		nothingAsked: "No question was asked yet.",
		mode: "Mode",
		asked: "Asked",
		answered: "Answered",
		found: "Found",
		used: "Used",
		alone: "Found alone",
		median: "Median",
		slow: "95 %",
		overlap: (first, second, percent) => `${first} and ${second} found ${percent} % the same.`
	},
	people: {
		none: "There are none.",
		name: "Name",
		identities: "Identities",
		identity: "Identity",
		role: "Role",
		owner: "owner",
		ownerOf: (places) => `owner of ${places}`,
		member: "member",
		link: "Link an identity",
		toPerson: "to person",
		access: "Access",
		asking: "Asks for access",
		nobodyAsks: "Nobody asks for access.",
		until: "Code valid until",
		code: "Code",
		approve: "Approve",
		approved: (name) => `${name} has access`,
		granted: "Has access by a code",
		revoke: "Revoke",
		confirmRevoke: "The identity has no access any more.",
		proof: "Proof",
		proofs: {
			config: "configuration",
			token: "token",
			operator: "operator",
			code: "code"
		},
		since: "Since",
		always: "always",
		unlink: "Unlink",
		confirmUnlink: "The identity becomes a person of its own.",
		sessions: "Sessions of this person",
		export: "Export what is stored of this person",
		forget: "Forget this person",
		forgetAbout: "Erases the words of this person in every log, and asks every memory to delete what it has. This cannot be undone.",
		planForget: "Show what would be forgotten",
		forgetBegan: "The log is erased. The memories are asked; their states follow below the list of people.",
		names: "Identities",
		recalls: "Recalled texts",
		remains: "What stays, and why",
		places: "Place",
		noPlaces: "No other place has anything.",
		parts: "What",
		forgettings: "Forgettings",
		noForgettings: "Nobody was forgotten.",
		accept: "Accept what remains",
		confirmAccept: "You deleted by hand what the place cannot delete."
	},
	schedules: {
		about: "A schedule writes its text into a chat at its times. It is made in a chat, with /schedule or by the agent.",
		none: "There are no schedules.",
		when: "When",
		text: "Text",
		chat: "Chat",
		next: "Next",
		last: "Last",
		paused: "paused",
		never: "never",
		remove: "Delete",
		confirmRemove: "It does not run again."
	},
	approvals: {
		name: "Permission",
		none: "No call waits for permission.",
		asks: (agent, tool) => `${agent} asks to run ${tool}`,
		askedBy: "Asked by",
		effect: "Effect",
		expires: "Until",
		states: {
			allowed: "allowed",
			running: "running",
			settled: "settled"
		},
		once: "Allow once",
		always: "Allow always",
		confirmAlways: "Exactly this call needs no permission any more.",
		note: "Reason of a denial",
		deny: "Deny",
		rules: "Remembered answers",
		noRules: "There are none.",
		by: "By"
	},
	setup: {
		model: "Model",
		offline: "The agents answer with a small built-in program until they have a language model.",
		modelThere: "the agents have a language model",
		anotherModel: "Use another model",
		provider: "Kind",
		providers: {
			openai: "OpenAI-compatible",
			anthropic: "Anthropic",
			offline: "none (offline)"
		},
		url: "Address",
		modelName: "Name there",
		key: "Key",
		useModel: "Test and use",
		modelWorks: (reply, time) => `It answered “${reply}” in ${time}.`,
		modelInUse: "The agents use it from the next message on.",
		platform: "Chat platform",
		platformAbout: "Connect a bot, then invite yourself by a link or a QR code.",
		connect: "Test and connect",
		connected: (platform, name) => name ? `Connected to ${platform} as ${name}.` : `Connected to ${platform}.`,
		invite: "Make an invitation",
		invited: "Person",
		invitation: (name, time) => `Whoever opens this link first may write to ${name}. It is valid until ${time}.`,
		qr: "The invitation as a QR code",
		hello: "Say hello",
		toConversation: "Open the conversation",
		start: "Set up a language model"
	},
	agents: {
		default: "default",
		model: "Model",
		missing: "Missing",
		budget: "Budget for a day",
		test: "Test the model"
	},
	platforms: {
		none: "No platform is configured.",
		account: "Account",
		listening: "listening",
		silent: "not listening",
		more: "More",
		pairing: "Approve access by a code"
	},
	tools: {
		noServers: "No tool server is configured.",
		none: "no tools",
		tool: "Tool",
		package: "Package",
		plugins: "Tools of installed packages",
		noPlugins: "There are none.",
		before: "Before:",
		confirm: (number) => `Confirm ${count(number, "tool", "tools")}`,
		confirmAbout: "Agents may use the tools as they are described now."
	},
	usage: {
		share: "Share",
		by: "By",
		keys: {
			day: "Day",
			agent: "Agent",
			model: "Model",
			person: "Person"
		},
		since: "From",
		until: "To",
		calls: "Calls",
		input: "Input",
		cached: "Cached",
		output: "Output",
		cost: "Cost",
		none: "No model was used.",
		unknown: "unknown",
		total: (calls, input, output, cost) => `${calls} calls, ${input} tokens in, ${output} out, ${cost}`
	},
	audit: {
		progress: (done, total) => total ? `Checked ${done} of ${count(total, "session", "sessions")}` : "Checking…",
		ended: (sessions, time) => `Checked ${count(sessions, "session", "sessions")} at ${time}.`,
		refused: (status) => `The audit was refused (${status}).`,
		again: "Check again",
		holds: "Holds:",
		broken: "Broken:",
		doubts: (number) => `${count(number, "delivery is", "deliveries are")} in doubt.`,
		findings: "Findings"
	},
	logs: {
		level: "From level",
		event: "Event",
		words: "Words",
		refused: (status) => `The log lines were refused (${status}).`
	},
	hosts: {
		single: "This store has one host.",
		clock: (time) => `The clocks of hosts differ by ${time}.`,
		none: "No host is registered.",
		host: "Host",
		own: "this one",
		alive: "alive",
		gone: "gone",
		draining: "draining",
		version: "Version",
		since: "Up for",
		renewed: "Heartbeat",
		accounts: "Accounts",
		cursors: "Works on",
		differ: "Other settings",
		drain: "Drain this host",
		confirmDrain: "It takes nothing new and ends when its work is done."
	},
	backups: {
		make: "Make a backup",
		made: (path, size, sound) => `${path} (${size})${sound ? "" : ", damaged"}`,
		none: "There are no backups.",
		path: "Path",
		size: "Size",
		upto: "Up to entry",
		sound: "sound",
		damaged: "damaged"
	},
	health: {
		fine: "Nothing is wrong.",
		store: "Store",
		since: "Running since",
		draining: "Draining",
		pending: "Messages that wait",
		held: "Messages held back",
		restart: "Needs a restart",
		waiting: "Work that waits",
		nothingWaits: "Nothing waits.",
		failures: "Failures",
		retried: (number) => `${number} tried again`,
		givenUp: (starts) => `A turn was started ${starts} times and did not end.`
	},
	configuration: {
		about: "Secrets are not in this text. A change is checked before it is written.",
		line: (line) => `line ${line}`,
		notInForce: "This text is not in force, because it is invalid. An earlier one is.",
		needsRestart: (names) => `In force after a restart: ${names}`,
		check: "Check",
		save: "Write",
		confirmSave: "The gateway uses the new text at once.",
		discard: "Discard",
		written: "written",
		valid: "The text is valid.",
		invalid: "The text is invalid.",
		versions: "Earlier texts",
		noVersions: "There are none.",
		by: "Replaced by",
		restore: "Restore",
		confirmRestore: "This text replaces the present one, byte for byte."
	},
	logins: {
		none: "No browser is logged in.",
		browser: "Browser",
		current: "this one",
		token: "Token",
		created: "Since",
		used: "Last used",
		end: "End",
		endsThis: "You are logged out."
	},
	tool: {
		asked: "waiting",
		running: "running",
		done: "done",
		failed: "failed",
		unknown: "outcome unknown",
		arguments: "Arguments",
		result: "Result",
		effect: (effect) => `Effect: ${effect}`
	},
	log: {
		name: "Log",
		hint: "Each step is committed to this log before the next step starts.",
		erased: "(erased)",
		removes: (text) => `removes: ${text}`,
		remembers: (text) => `remembers: ${text}`,
		compressed: "earlier messages are replaced by a summary",
		stopped: (reason) => reason ? `stopped: ${reason}` : "stopped",
		failed: (outcome, reason) => reason ? `${outcome}: ${reason}` : outcome,
		newContext: "new context",
		undone: "undone",
		titled: (title) => `titled “${title}”`,
		branched: "branch created",
		pinnedEntry: (seq) => `pinned entry ${seq}`,
		sender: "sender",
		unknownAuthor: "an unknown author",
		quoted: (source, who) => `[${source} from ${who}]`,
		takes: (seqs) => `takes ${seqs.join(", ") || "nothing"}`,
		calls: (tools) => `calls ${tools.join(", ")}`,
		usage: (input, output) => `${input} in, ${output} out`,
		covers: (op) => `covers up to ${op}`,
		operation: (op) => `operation ${op}`,
		details: "Deliveries"
	}
};
var scriptRel = /* @__PURE__ */ (function detectScriptRel() {
	const relList = typeof document !== "undefined" && document.createElement("link").relList;
	return relList && relList.supports && relList.supports("modulepreload") ? "modulepreload" : "preload";
})();
var assetsURL = function(dep) {
	return "/static/" + dep;
};
var seen = {};
var isCssPreloadUrl = function isCssPreloadUrl(url) {
	return url.pathname.endsWith(".css");
};
var preloadOnce = function preloadOnce(seen, href, preload) {
	if (href in seen) return seen[href];
	const promise = preload();
	if (!promise) {
		seen[href] = void 0;
		return;
	}
	const preloadPromise = promise.then(() => {
		seen[href] = void 0;
	}, (err) => {
		seen[href] = void 0;
		throw err;
	});
	seen[href] = preloadPromise;
	return preloadPromise;
};
var __vitePreload = function preload(baseModule, deps, importerUrl) {
	let promise = Promise.resolve();
	if (deps && deps.length > 0) {
		let preloadedHrefs;
		const cspNonceMeta = document.querySelector("meta[property=csp-nonce]");
		const cspNonce = cspNonceMeta?.nonce || cspNonceMeta?.getAttribute("nonce");
		function allSettled(promises) {
			return Promise.all(promises.map((p) => Promise.resolve(p).then((value) => ({
				status: "fulfilled",
				value
			}), (reason) => ({
				status: "rejected",
				reason
			}))));
		}
		function importMetaResolve(specifier) {
			if (import.meta.resolve) return new URL(import.meta.resolve(specifier));
			return new URL(
				specifier,
				/** #__KEEP__ */
				import.meta.url
			);
		}
		promise = allSettled(deps.map((depString) => {
			depString = assetsURL(depString, importerUrl);
			const dep = importMetaResolve(depString);
			const isCss = isCssPreloadUrl(dep);
			return preloadOnce(seen, dep.href, () => {
				if (preloadedHrefs === void 0) {
					preloadedHrefs = {
						all: /* @__PURE__ */ new Set(),
						styles: /* @__PURE__ */ new Set()
					};
					const links = document.getElementsByTagName("link");
					for (let i = links.length - 1; i >= 0; i--) {
						const link = links[i];
						preloadedHrefs.all.add(link.href);
						if (link.rel === "stylesheet") preloadedHrefs.styles.add(link.href);
					}
				}
				if ((isCss ? preloadedHrefs.styles : preloadedHrefs.all).has(dep.href)) return;
				const link = document.createElement("link");
				link.rel = isCss ? "stylesheet" : scriptRel;
				if (!isCss) link.as = "script";
				link.crossOrigin = "";
				link.href = dep.href;
				if (cspNonce) link.setAttribute("nonce", cspNonce);
				document.head.appendChild(link);
				if (isCss) return new Promise((res, rej) => {
					const handleSettle = (e) => {
						link.removeEventListener("load", handleSettle);
						link.removeEventListener("error", handleSettle);
						if (e.type === "error") rej(/* @__PURE__ */ new Error(`Unable to preload CSS for ${dep}`));
						else res(e);
					};
					link.addEventListener("load", handleSettle);
					link.addEventListener("error", handleSettle);
				});
			});
		}).filter((p) => p !== void 0));
	}
	function handlePreloadError(err) {
		const e = new Event("vite:preloadError", { cancelable: true });
		e.payload = err;
		window.dispatchEvent(e);
		if (!e.defaultPrevented) throw err;
	}
	return promise.then((res) => {
		for (const item of res || []) {
			if (item.status !== "rejected") continue;
			handlePreloadError(item.reason);
		}
		return baseModule().catch(handlePreloadError);
	});
};
var language = navigator.languages.map((it) => it.slice(0, 2)).find((it) => it === "en" || it === "de") ?? "en";
var words = language === "de" ? (await __vitePreload(async () => {
	const { de } = await import("./de.js");
	return { de };
}, [])).de : en;
var KEY_NAME = "everhold.key";
var memoryKey = "";
function readKey() {
	try {
		return localStorage.getItem(KEY_NAME) ?? memoryKey;
	} catch {
		return memoryKey;
	}
}
function writeKey(key) {
	memoryKey = key;
	try {
		if (key) localStorage.setItem(KEY_NAME, key);
		else localStorage.removeItem(KEY_NAME);
	} catch {}
}
var Login = class {
	state = y(readKey() ? "in" : "out");
	problem = y("");
	offered = y(null);
	async fetch(path, options = {}) {
		for (;;) {
			const key = readKey();
			const headers = {
				...options.headers,
				...key && { "X-Everhold-Key": key }
			};
			const response = await fetch(path, {
				cache: "no-store",
				...options,
				headers
			});
			if (response.status !== 401) return response;
			const other = readKey();
			if (other && other !== key) continue;
			if (this.state.value === "in") this.change(key ? "ended" : "out");
			return response;
		}
	}
	async useLink() {
		const code = new URLSearchParams(location.hash.slice(1)).get("code");
		if (!code) return;
		history.replaceState(null, "", location.pathname);
		await this.logIn({ code });
	}
	async answerOffer(use) {
		const code = this.offered.value?.code;
		this.offered.value = null;
		if (use && code) await this.logIn({
			code,
			replace: true
		});
	}
	async logIn(proof) {
		const before = this.state.value;
		if (before !== "in") this.change("working");
		try {
			const key = readKey();
			const response = await fetch("/api/login", {
				method: "POST",
				headers: {
					"content-type": "application/json",
					...key && { "X-Everhold-Key": key }
				},
				body: JSON.stringify(proof)
			});
			const answer = await response.json();
			if (answer.error?.type === "other_login") {
				this.offered.value = {
					...proof,
					message: answer.error.message
				};
				return this.change(before);
			}
			if (!response.ok) throw new Error(answer.error?.message ?? response.statusText);
			this.change("working");
			writeKey(answer.key);
			this.change("in");
		} catch (error) {
			this.change(before === "in" ? "in" : "out", error instanceof TypeError ? words.login.noAnswer : error.message);
		}
	}
	async logOut() {
		await this.fetch("/api/logout", {
			method: "POST",
			headers: { "content-type": "application/json" },
			body: "{}"
		}).catch(() => void 0);
		writeKey("");
		this.change("out");
	}
	change(state, problem = "") {
		this.problem.value = problem;
		this.state.value = state;
	}
};
var login = new Login();
async function readStream(path, { headers = {}, signal, onStarted, onAlive, onEvent }) {
	const response = await login.fetch(path, {
		headers,
		signal
	});
	if (!response.ok || !response.body) return response.status;
	onStarted?.();
	const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
	for (let rest = "";;) {
		const { done, value } = await reader.read();
		if (done) return 0;
		onAlive?.();
		const blocks = (rest + value).split("\n\n");
		rest = blocks.pop() ?? "";
		for (const block of blocks) {
			const event = parseEvent(block);
			if (event) onEvent(event);
		}
	}
}
function parseEvent(block) {
	const fields = {};
	for (const line of block.split("\n")) {
		const colon = line.indexOf(":");
		if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
	}
	return fields.data ? {
		event: fields.event ?? "message",
		id: fields.id ?? "",
		data: JSON.parse(fields.data)
	} : null;
}
var MIN_WAIT_MS = 300;
var MAX_WAIT_MS = 4e3;
var SILENCE_MS = 4e4;
var connection = y({
	state: "connecting",
	since: Date.now()
});
var EventStream = class {
	handlers;
	lastPos = null;
	retryNow = () => {};
	abort = new AbortController();
	constructor(handlers) {
		this.handlers = handlers;
	}
	restart() {
		this.abort.abort();
		this.retryNow();
	}
	async run() {
		const retry = () => this.retryNow();
		addEventListener("online", retry);
		document.addEventListener("visibilitychange", retry);
		for (let wait = MIN_WAIT_MS;; wait = Math.min(wait * 2, MAX_WAIT_MS)) {
			let status = login.state.value === "in" ? 0 : 401;
			if (!status) status = await this.readEvents(() => wait = MIN_WAIT_MS).catch(() => 0);
			setConnection(status === 401 || status === 403 ? "denied" : "offline");
			await new Promise((done) => {
				this.retryNow = done;
				setTimeout(done, wait);
			});
		}
	}
	async readEvents(onStarted) {
		const abort = this.abort = new AbortController();
		let timer = 0;
		const restartTimer = () => {
			clearTimeout(timer);
			timer = setTimeout(() => abort.abort(), SILENCE_MS);
		};
		try {
			restartTimer();
			return await readStream("/api/events", {
				headers: this.lastPos === null ? {} : { "Last-Event-ID": String(this.lastPos) },
				signal: abort.signal,
				onStarted,
				onAlive: restartTimer,
				onEvent: (event) => this.handle(event)
			});
		} finally {
			clearTimeout(timer);
			abort.abort();
		}
	}
	handle({ event, id, data }) {
		if (event === "hello") {
			const restored = this.lastPos !== null && data.end < this.lastPos;
			this.lastPos = data.pos;
			setConnection("live");
			this.handlers.hello(restored);
			return;
		}
		if (event === "entry") this.handlers.entry(data);
		else if (event === "delta") this.handlers.delta(data);
		else if (event === "reset") this.handlers.reset(data);
		if (id) this.lastPos = Number(id);
	}
};
function setConnection(state) {
	if (connection.value.state !== state) connection.value = {
		state,
		since: Date.now()
	};
}
function OfferedLogin() {
	const offered = login.offered.value;
	if (!offered) return null;
	return /* @__PURE__ */ a("div", {
		class: "offer",
		role: "alertdialog",
		"aria-label": words.login.anotherLogin,
		"aria-describedby": "offer",
		children: [
			/* @__PURE__ */ a("p", {
				id: "offer",
				children: words.login.offer(offered.message)
			}),
			/* @__PURE__ */ a("button", {
				class: "quiet",
				onClick: () => login.answerOffer(true),
				children: words.login.useLink
			}),
			/* @__PURE__ */ a("button", {
				class: "send",
				onClick: () => login.answerOffer(false),
				children: login.state.value === "in" ? words.login.stay : words.login.refuse
			})
		]
	});
}
function LoginPage() {
	const [token, write] = d("");
	const send = (event) => {
		event.preventDefault();
		if (!token.trim()) return;
		login.logIn({ token: token.trim() });
		write("");
	};
	return /* @__PURE__ */ a("main", {
		class: "login",
		children: [/* @__PURE__ */ a(OfferedLogin, {}), /* @__PURE__ */ a("form", {
			onSubmit: send,
			"aria-label": words.login.logIn,
			children: [
				/* @__PURE__ */ a("h1", { children: [/* @__PURE__ */ a("img", {
					src: "/static/logo.svg",
					alt: "",
					width: "28",
					height: "28"
				}), " everhold"] }),
				login.state.value === "ended" && /* @__PURE__ */ a("p", {
					role: "status",
					children: words.login.ended
				}),
				/* @__PURE__ */ a("p", { children: [
					words.login.howBefore,
					" ",
					/* @__PURE__ */ a("code", { children: "everhold open" }),
					" ",
					words.login.howAfter
				] }),
				/* @__PURE__ */ a("label", {
					for: "token",
					children: words.login.token
				}),
				/* @__PURE__ */ a("input", {
					id: "token",
					type: "password",
					autocomplete: "off",
					spellcheck: false,
					value: token,
					onInput: (event) => write(event.currentTarget.value)
				}),
				/* @__PURE__ */ a("button", {
					type: "submit",
					class: "send",
					disabled: !token.trim() || login.state.value === "working",
					children: words.login.logIn
				}),
				/* @__PURE__ */ a("p", {
					class: "bad",
					role: "alert",
					children: login.problem.value
				})
			]
		})]
	});
}
var SESSION_ID = /^[0-9a-z]{26}$/;
var place = y(readPlace());
function readPlace(hash = location.hash) {
	const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
	const [page = "", ...parts] = path.split("/").map(decode);
	if (!hash.startsWith("#/")) return {
		page: SESSION_ID.test(page) ? "session" : "",
		parts: [page],
		query: new URLSearchParams()
	};
	return {
		page,
		parts,
		query: new URLSearchParams(query)
	};
}
function decode(text) {
	try {
		return decodeURIComponent(text);
	} catch {
		return text;
	}
}
function buildLink(page, parts = [], query = {}) {
	const path = [page, ...parts].map((part) => encodeURIComponent(part)).join("/");
	const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
	return `#/${path}${given.size ? `?${given}` : ""}`;
}
function go(link) {
	location.hash = link;
}
function replacePlace(link) {
	history.replaceState(null, "", link || location.pathname);
	place.value = readPlace();
}
function followAddress(onCode) {
	addEventListener("hashchange", () => {
		if (location.hash.startsWith("#code=")) onCode();
		else place.value = readPlace();
	});
}
var ApiError = class extends Error {
	status;
	type;
	remedy;
	constructor(status, type, message, remedy) {
		super(message);
		this.status = status;
		this.type = type;
		this.remedy = remedy;
	}
};
async function call(route, parameters, body, signal) {
	return await (await request(route, parameters, body, signal)).json();
}
async function callForText(route, parameters) {
	return (await request(route, parameters, void 0)).text();
}
async function request(route, parameters = {}, body, signal) {
	const [method, path] = route.split(" ");
	const options = {
		method,
		...signal && { signal }
	};
	if (method !== "GET") {
		options.headers = { "content-type": "application/json" };
		options.body = JSON.stringify(body ?? {});
	}
	return send(buildUrl(path, parameters), options);
}
async function send(url, options) {
	let response;
	try {
		response = await login.fetch(url, options);
	} catch (error) {
		if (error instanceof DOMException && error.name === "AbortError") throw error;
		throw new ApiError(0, "unreachable", String(error), "");
	}
	if (!response.ok) throw await readRefusal(response);
	return response;
}
async function upload(file) {
	return await (await send(buildUrl("/api/files", {
		name: file.name,
		media: file.type
	}), {
		method: "POST",
		headers: { "content-type": "application/octet-stream" },
		body: file
	})).json();
}
function buildUrl(path, parameters) {
	const query = new URLSearchParams();
	for (const [name, value] of Object.entries(parameters)) if (path.includes(`{${name}}`)) path = path.replace(`{${name}}`, encodeURIComponent(String(value)));
	else if (value !== void 0 && value !== "") query.set(name, String(value));
	return query.size ? `${path}?${query}` : path;
}
async function readRefusal(response) {
	const { type = "refused", message = response.statusText, remedy = "" } = (await response.json().catch(() => ({}))).error ?? {};
	return new ApiError(response.status, type, message, remedy);
}
var ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz";
function parseAddress(address = "") {
	const [, agent = "", platform = "", kind = "", chat = "", ...labels] = address.split(":").map(decodeURIComponent);
	const thread = labels[0] === "thread" ? labels[1] ?? "" : "";
	return {
		agent,
		platform,
		kind,
		chat: thread || chat,
		person: thread ? chat : ""
	};
}
function getCreationTime(id) {
	return [...id.slice(0, 10)].reduce((sum, char) => sum * 32 + ALPHABET.indexOf(char), 0);
}
var PAGE_SIZE$1 = 400;
var EMPTY = {
	entries: [],
	before: 0,
	filling: null,
	again: false
};
var Logs = class {
	onLoaded;
	logs = /* @__PURE__ */ new Map();
	constructor(onLoaded) {
		this.onLoaded = onLoaded;
	}
	get(session) {
		return session && this.logs.get(session) || EMPTY;
	}
	clear() {
		this.logs.clear();
	}
	has(session, message) {
		return this.get(session).entries.some((entry) => (entry.body?.origin)?.message === message);
	}
	add(session, entry) {
		const log = this.logs.get(session);
		if (!log) return;
		if (log.filling) {
			log.again = true;
			return;
		}
		const last = getLast(log);
		if (entry.seq === last + 1) log.entries.push(entry);
		else if (entry.seq > last) this.load(session).catch(() => void 0);
	}
	async load(session) {
		let log = this.logs.get(session);
		if (!log) {
			const { last_seq } = await call("GET /api/sessions/{id}", { id: session });
			log = this.logs.get(session) ?? {
				entries: [],
				before: Math.max(0, last_seq - PAGE_SIZE$1),
				filling: null,
				again: false
			};
			this.logs.set(session, log);
		}
		if (log.filling) log.again = true;
		else log.filling = this.fill(session, log);
		await log.filling;
	}
	async fill(session, log) {
		try {
			do {
				log.again = false;
				const { entries } = await call("GET /api/sessions/{id}/entries", {
					id: session,
					after: getLast(log)
				});
				const last = getLast(log);
				log.entries.push(...entries.filter((entry) => entry.seq > last));
			} while (log.again);
		} finally {
			log.filling = null;
			this.onLoaded(session);
		}
	}
	async loadEarlier(session) {
		const log = this.get(session);
		const after = Math.max(0, log.before - PAGE_SIZE$1);
		const { entries } = await call("GET /api/sessions/{id}/entries", {
			id: session,
			after,
			limit: log.before - after
		});
		log.entries.unshift(...entries);
		log.before = after;
		this.onLoaded(session);
	}
};
function getLast(log) {
	return log.entries.at(-1)?.seq ?? log.before;
}
function readStorage(key) {
	try {
		return JSON.parse(sessionStorage.getItem(key) ?? "null");
	} catch {
		return null;
	}
}
function writeStorage(key, value) {
	try {
		sessionStorage.setItem(key, JSON.stringify(value));
	} catch {}
}
var KEY = "everhold.outbox";
var RETRY_MS = 1e3;
var Outbox = class {
	onSent;
	messages = y(readStorage(KEY) ?? []);
	delivering = false;
	constructor(onSent) {
		this.onSent = onSent;
	}
	add(message) {
		this.write([...this.messages.value, {
			...message,
			id: crypto.randomUUID()
		}]);
		this.deliver();
	}
	keepOnly(by) {
		this.write(this.messages.value.filter((message) => message.by === by));
	}
	remove(id) {
		const found = this.messages.value.find((message) => message.id === id);
		if (found) this.write(this.messages.value.filter((message) => message !== found));
		return found;
	}
	async deliver() {
		if (this.delivering) return;
		this.delivering = true;
		try {
			for (let next; next = this.messages.value.find(isWaiting);) {
				const { id, agent, chat, text, files } = next;
				try {
					const { session } = await call("POST /api/messages", {}, {
						id,
						agent,
						chat,
						text,
						...files?.length && { files: files.map((file) => file.id) }
					});
					this.change(id, {
						sent: true,
						session
					});
					this.onSent(next, session);
				} catch (error) {
					if (!(error instanceof ApiError) || isTemporary(error.status)) return;
					this.change(id, { refused: error.message });
				}
			}
		} finally {
			this.delivering = false;
			if (this.messages.value.some(isWaiting)) setTimeout(() => void this.deliver(), RETRY_MS);
		}
	}
	change(id, changes) {
		this.write(this.messages.value.map((message) => message.id === id ? {
			...message,
			...changes
		} : message));
	}
	write(messages) {
		this.messages.value = messages;
		writeStorage(KEY, messages);
	}
};
function isWaiting(message) {
	return !message.refused && !message.sent;
}
function isTemporary(status) {
	return status === 0 || status >= 500 || status === 429 || status === 401;
}
var PAGE_SIZE = 100;
var ConsoleState = class {
	revision = y(0);
	caller = y(null);
	sessions = /* @__PURE__ */ new Map();
	logs = new Logs((id) => this.onLogLoaded(id));
	drafts = /* @__PURE__ */ new Map();
	outbox = new Outbox((message, session) => this.onSent(message, session));
	listeners = /* @__PURE__ */ new Set();
	agents = y([]);
	openId = y(null);
	newChat = y(null);
	drawn = false;
	changed() {
		if (this.drawn) return;
		this.drawn = true;
		const draw = () => {
			this.drawn = false;
			this.revision.value += 1;
		};
		if (document.hidden) setTimeout(draw);
		else requestAnimationFrame(draw);
	}
	follow() {
		this.revision.value;
	}
	getOpenLog() {
		this.follow();
		return this.logs.get(this.openId.value);
	}
	getOpenDraft() {
		this.follow();
		return this.openId.value ? this.drafts.get(this.openId.value) : void 0;
	}
	async refresh() {
		const [caller, models, listed] = await Promise.all([
			call("GET /api/me"),
			call("GET /v1/models"),
			call("GET /api/sessions", {
				order: "active",
				limit: PAGE_SIZE
			})
		]);
		this.caller.value = caller;
		this.outbox.keepOnly(caller.name);
		this.agents.value = models.data.map((model) => model.id);
		for (const session of listed.sessions) this.update(session, session.first);
		await this.followPlace();
		if (this.openId.value) await this.logs.load(this.openId.value).catch(() => void 0);
		this.changed();
		this.outbox.deliver();
	}
	async followPlace() {
		const { page, parts } = place.value;
		const wanted = page === "session" ? parts[0] ?? "" : "";
		if (wanted && wanted !== this.openId.value) {
			if (!this.sessions.has(wanted)) await this.loadSession(wanted).catch(() => void 0);
			if (this.sessions.has(wanted)) return this.open(wanted);
		}
		if (this.openId.value || this.newChat.value || page !== "" && page !== "session") return;
		const own = this.listSessions().find((session) => this.isOwnChat(session));
		if (own) this.open(own.id);
		else this.startConversation();
	}
	update(session, first) {
		const before = this.sessions.get(session.id);
		const newest = before && before.last_seq > session.last_seq ? before : {
			...session,
			busy: session.state === "turn"
		};
		const at = Math.max(before?.at ?? 0, session.at || getCreationTime(session.id) / 1e3);
		this.sessions.set(session.id, {
			...session,
			...newest,
			at,
			first: first || before?.first || ""
		});
		this.changed();
	}
	async loadSession(id) {
		this.update(await call("GET /api/sessions/{id}", { id }));
	}
	listSessions() {
		this.follow();
		return [...this.sessions.values()].filter((session) => !session.archived).sort((a, b) => b.at - a.at);
	}
	getOpen() {
		this.follow();
		return this.openId.value ? this.sessions.get(this.openId.value) : void 0;
	}
	isOwnChat(session) {
		if (!session) return false;
		const { platform, kind, chat, person } = parseAddress(session.address);
		const caller = this.caller.value;
		return platform === "http" && kind === "dm" && (person ? person === caller?.name : Boolean(chat && caller?.local));
	}
	async loadWait(id) {
		const session = await call("GET /api/sessions/{id}", { id });
		this.update(session);
		return session.waiting ?? null;
	}
	clearCache() {
		this.sessions.clear();
		this.logs.clear();
		this.drafts.clear();
		this.openId.value = null;
		this.changed();
	}
	forgetCaller() {
		this.clearCache();
		this.newChat.value = null;
		this.caller.value = null;
	}
	startConversation(agent = this.agents.value.includes("main") ? "main" : this.agents.value[0] ?? "") {
		const taken = new Set([...this.sessions.values()].map((session) => parseAddress(session.address).chat));
		let number = 1;
		while (taken.has(`chat-${number}`)) number += 1;
		this.newChat.value = {
			agent,
			chat: `chat-${number}`
		};
		this.openId.value = null;
		replacePlace("");
		this.changed();
	}
	open(id) {
		this.openId.value = id;
		this.newChat.value = null;
		const { page, parts } = place.value;
		if (page === "" || page === "session" && parts[0] !== id) replacePlace(buildLink("session", [id]));
		this.changed();
		this.logs.load(id).catch(() => void 0);
	}
	onLogLoaded(id) {
		const log = this.logs.get(id);
		this.name(id, log.entries[0]);
		this.changed();
	}
	name(id, entry) {
		const known = this.sessions.get(id);
		if (known && entry?.seq === 1 && entry.kind === "heard") known.first = String(entry.body?.text ?? "");
	}
	onHello(restored) {
		if (restored) this.clearCache();
		this.refresh().catch(() => void 0);
		this.tell(null);
	}
	onEntry(entry) {
		const { session, kind } = entry;
		this.logs.add(session, entry);
		const known = this.sessions.get(session);
		if (known) this.apply(known, entry);
		else this.loadSession(session).catch(() => void 0);
		if ([
			"thought",
			"said",
			"ended"
		].includes(kind)) this.drafts.delete(session);
		if (kind === "heard") this.onArrived(String((entry.body?.origin)?.message), session);
		this.tell(entry);
		this.changed();
	}
	apply(before, entry) {
		const { kind, body } = entry;
		const known = {
			...before,
			at: entry.at,
			last_seq: entry.seq
		};
		this.sessions.set(known.id, known);
		this.name(known.id, entry);
		if (kind === "began" && body?.type === "turn") known.busy = true;
		if (kind === "ended") known.busy = false;
		const change = kind === "changed" ? body?.change : void 0;
		if (change?.type === "session_titled") known.title = change.title ?? "";
	}
	onDelta({ session, op, text }) {
		const draft = this.drafts.get(session);
		this.drafts.set(session, draft?.op === op ? {
			op,
			text: draft.text + text
		} : {
			op,
			text
		});
		this.changed();
	}
	onReset({ session, op }) {
		this.drafts.set(session, {
			op,
			text: ""
		});
		this.changed();
	}
	onDisconnected() {
		this.drafts.clear();
		this.changed();
	}
	tell(entry) {
		for (const listener of this.listeners) listener(entry);
	}
	send(text, files) {
		const target = this.newChat.value ?? parseAddress(this.getOpen()?.address);
		const by = this.caller.value?.name ?? "";
		this.outbox.add({
			agent: target.agent,
			chat: target.chat,
			text,
			files,
			session: this.openId.value,
			by
		});
	}
	onSent(message, session) {
		if (!this.sessions.has(session)) this.loadSession(session).catch(() => void 0);
		if (this.isNewChat(message)) this.open(session);
		if (this.logs.has(session, message.id)) this.onArrived(message.id, session);
		this.changed();
	}
	onArrived(id, session) {
		const message = this.outbox.remove(id);
		if (message && this.isNewChat(message)) this.open(session);
	}
	isNewChat({ agent, chat }) {
		return this.newChat.value?.chat === chat && this.newChat.value.agent === agent;
	}
	listOutgoing() {
		const target = this.newChat.value;
		return this.outbox.messages.value.filter((message) => target ? message.chat === target.chat && message.agent === target.agent : message.session === this.openId.value);
	}
	get isLive() {
		return connection.value.state === "live";
	}
};
var state = new ConsoleState();
var SETTLE_MS = 400;
function useResource(load, keys, follows = null) {
	const [shown, show] = d({
		value: void 0,
		error: null,
		loading: true
	});
	const running = T(new AbortController());
	const reload = b(() => {
		running.current.abort();
		const abort = running.current = new AbortController();
		show((before) => ({
			...before,
			loading: true
		}));
		load(abort.signal).then((value) => abort.signal.aborted || show({
			value,
			error: null,
			loading: false
		}), (error) => abort.signal.aborted || show((before) => ({
			...before,
			error,
			loading: false
		})));
	}, keys);
	A(() => {
		show({
			value: void 0,
			error: null,
			loading: true
		});
		reload();
		return () => running.current.abort();
	}, [reload]);
	useLive(reload, follows);
	return {
		...shown,
		reload
	};
}
function useLive(act, follows) {
	A(() => {
		let timer = 0;
		const listen = (entry) => {
			if (timer || entry && !follows?.(entry)) return;
			timer = setTimeout(() => {
				timer = 0;
				act();
			}, SETTLE_MS);
		};
		state.listeners.add(listen);
		return () => {
			state.listeners.delete(listen);
			clearTimeout(timer);
		};
	}, [act]);
}
function Problem({ error }) {
	if (!error) return null;
	const known = error instanceof ApiError ? error : null;
	const message = known?.status === 0 ? words.problem.unreachable : error instanceof Error ? error.message : String(error);
	return /* @__PURE__ */ a("div", {
		class: "problem",
		role: "alert",
		children: [
			/* @__PURE__ */ a("p", { children: message }),
			known?.remedy && /* @__PURE__ */ a("p", {
				class: "remedy",
				children: known.remedy
			}),
			known?.type === "login_too_old" && /* @__PURE__ */ a("button", {
				class: "quiet",
				onClick: () => void login.logOut(),
				children: words.problem.logInAgain
			})
		]
	});
}
var TIME = new Intl.DateTimeFormat(language, {
	hour: "2-digit",
	minute: "2-digit",
	hourCycle: "h23"
});
var EXACT = new Intl.DateTimeFormat(language, {
	hour: "2-digit",
	minute: "2-digit",
	second: "2-digit",
	hourCycle: "h23"
});
var DAY = new Intl.DateTimeFormat(language, {
	day: "numeric",
	month: "short"
});
var FULL = new Intl.DateTimeFormat(language, {
	dateStyle: "medium",
	timeStyle: "medium"
});
var NUMBER = new Intl.NumberFormat(language);
var MONEY = new Intl.NumberFormat(language, {
	style: "currency",
	currency: "USD",
	maximumFractionDigits: 4
});
function formatTime(at) {
	return TIME.format(at * 1e3);
}
function formatExactTime(at) {
	return EXACT.format(at * 1e3);
}
function formatFull(at) {
	return FULL.format(at * 1e3);
}
function formatShort(at) {
	const date = /* @__PURE__ */ new Date(at * 1e3);
	return date.toDateString() === (/* @__PURE__ */ new Date()).toDateString() ? formatTime(at) : DAY.format(date);
}
function formatSeconds(seconds) {
	if (seconds < 1) return `${Math.round(seconds * 1e3)} ms`;
	if (seconds < 60) return `${NUMBER.format(Math.round(seconds * 10) / 10)} s`;
	if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
	return seconds < 86400 ? `${NUMBER.format(Math.round(seconds / 360) / 10)} h` : `${NUMBER.format(Math.round(seconds / 8640) / 10)} d`;
}
function formatNumber(value) {
	return NUMBER.format(value);
}
function formatMoney(usd) {
	return MONEY.format(usd);
}
function formatBytes(bytes) {
	for (const [unit, size] of [
		["GB", 1e9],
		["MB", 1e6],
		["kB", 1e3]
	]) if (bytes >= size) return `${NUMBER.format(Math.round(bytes / (size / 10)) / 10)} ${unit}`;
	return `${bytes} B`;
}
function useAttachments() {
	const [files, setFiles] = d([]);
	const [uploading, setUploading] = d(0);
	const [error, fail] = d(null);
	const addOne = async (file) => {
		setUploading((count) => count + 1);
		try {
			const { id, name, size } = await upload(file);
			setFiles((before) => [...before, {
				id,
				name: name || file.name,
				size
			}]);
		} catch (caught) {
			fail(caught);
		}
		setUploading((count) => count - 1);
	};
	const add = (given) => {
		fail(null);
		for (const file of given) addOne(file);
	};
	const remove = (id) => setFiles((before) => before.filter((file) => file.id !== id));
	return {
		files,
		uploading,
		error,
		add,
		remove,
		clear: () => setFiles([])
	};
}
function AttachButton({ add }) {
	return /* @__PURE__ */ a("label", {
		class: "quiet attach",
		title: words.conversation.attach,
		children: [
			/* @__PURE__ */ a("span", {
				"aria-hidden": "true",
				children: "+"
			}),
			/* @__PURE__ */ a("span", {
				class: "hidden",
				children: words.conversation.attach
			}),
			/* @__PURE__ */ a("input", {
				type: "file",
				multiple: true,
				class: "hidden",
				onChange: (event) => {
					add([...event.currentTarget.files ?? []]);
					event.currentTarget.value = "";
				}
			})
		]
	});
}
function AttachmentList({ attachments }) {
	const { files, uploading, error, remove } = attachments;
	if (!files.length && !uploading && !error) return null;
	return /* @__PURE__ */ a("div", {
		class: "attachments",
		children: [
			files.map((file) => /* @__PURE__ */ a("span", {
				class: "attachment",
				children: [
					file.name,
					" ",
					/* @__PURE__ */ a("span", {
						class: "hint",
						children: formatBytes(file.size)
					}),
					/* @__PURE__ */ a("button", {
						type: "button",
						class: "quiet",
						"aria-label": words.conversation.detach(file.name),
						onClick: () => remove(file.id),
						children: "×"
					})
				]
			}, file.id)),
			uploading > 0 && /* @__PURE__ */ a("span", {
				role: "status",
				children: words.conversation.uploading
			}),
			/* @__PURE__ */ a(Problem, { error })
		]
	});
}
function Composer({ session }) {
	return Boolean(state.newChat.value) || state.isOwnChat(session) ? /* @__PURE__ */ a(MessageForm, { session }) : /* @__PURE__ */ a(ReadOnly, { session });
}
function MessageForm({ session }) {
	const [text, write] = d("");
	const [over, setOver] = d(false);
	const attachments = useAttachments();
	const field = T(null);
	const target = state.newChat.value ?? parseAddress(session?.address);
	A(() => field.current?.focus(), [state.openId.value, state.newChat.value?.chat]);
	const isEmpty = !text.trim() && !attachments.files.length || attachments.uploading > 0;
	const send = (event) => {
		event.preventDefault();
		if (isEmpty) return;
		state.send(text, attachments.files);
		write("");
		attachments.clear();
	};
	const take = (event, data) => {
		const files = [...data?.files ?? []];
		setOver(false);
		if (!files.length) return;
		event.preventDefault();
		attachments.add(files);
	};
	const label = words.conversation.messageTo(target.agent);
	return /* @__PURE__ */ a("form", {
		class: `composer${over ? " over" : ""}`,
		onSubmit: send,
		onDragOver: (event) => {
			event.preventDefault();
			setOver(true);
		},
		onDragLeave: () => setOver(false),
		onDrop: (event) => take(event, event.dataTransfer),
		children: [
			/* @__PURE__ */ a(AttachmentList, { attachments }),
			/* @__PURE__ */ a(AttachButton, { add: attachments.add }),
			/* @__PURE__ */ a("label", {
				class: "hidden",
				for: "field",
				children: label
			}),
			/* @__PURE__ */ a("textarea", {
				id: "field",
				ref: field,
				rows: 1,
				placeholder: label,
				value: text,
				onInput: (event) => write(event.currentTarget.value),
				onPaste: (event) => take(event, event.clipboardData),
				onKeyDown: (event) => {
					if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
				}
			}),
			session?.busy && state.isLive && /* @__PURE__ */ a(StopButton, { id: session.id }),
			/* @__PURE__ */ a("button", {
				type: "submit",
				class: "send",
				disabled: isEmpty,
				children: words.conversation.send
			})
		]
	});
}
function StopButton({ id }) {
	const stop = () => void call("POST /api/sessions/{id}/stop", { id }).catch(() => void 0);
	return /* @__PURE__ */ a("button", {
		type: "button",
		class: "quiet",
		onClick: stop,
		children: words.conversation.stop
	});
}
function ReadOnly({ session }) {
	if (!session) return /* @__PURE__ */ a("p", { class: "composer readonly" });
	const { platform } = parseAddress(session.address);
	return /* @__PURE__ */ a("p", {
		class: "composer readonly",
		children: platform === "terminal" ? words.conversation.inTerminal(session.id) : words.conversation.onPlatform(platform)
	});
}
var NEAR_PX = 80;
function useFollow(end, grown) {
	const box = T(null);
	const there = T(true);
	A(() => {
		const element = box.current;
		const look = () => {
			there.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_PX;
		};
		element.addEventListener("scroll", look, { passive: true });
		return () => element.removeEventListener("scroll", look);
	}, []);
	A(() => {
		if (there.current) end.current?.scrollIntoView({ block: "end" });
	}, grown);
	return box;
}
function memo(draw) {
	class Memo extends x {
		shouldComponentUpdate(next) {
			const before = this.props;
			return Object.entries(next).some(([name, value]) => before[name] !== value);
		}
		render() {
			return draw(this.props);
		}
	}
	return (properties) => k(Memo, properties);
}
var SHOWN_MS = 1500;
function CopyButton({ text, label, children }) {
	const [copied, setCopied] = d(false);
	const copy = async () => {
		await navigator.clipboard?.writeText(text);
		setCopied(true);
		setTimeout(() => setCopied(false), SHOWN_MS);
	};
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("button", {
		type: "button",
		class: "quiet copy",
		"aria-label": children ? void 0 : label,
		title: label,
		onClick: () => void copy(),
		children: children ?? words.copy
	}), /* @__PURE__ */ a("span", {
		class: "hint",
		"aria-live": "polite",
		children: copied ? words.copied : ""
	})] });
}
var FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*).*$/;
var ITEM = /^(\s*)(?:[-*+•]|\d{1,3}[.)])\s+(.*)$/;
var HEADING = /^#{1,6}\s/;
var RULE = /^\s*([-*_])(?:\s*\1){2,}\s*$/;
var DELIMITER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
var INLINE = /(`+)([^`]|[^`].*?[^`])\1(?!`)|\*\*(\S(?:.*?\S)?)\*\*|(?<![\w*])\*(\S(?:.*?\S)?)\*(?![\w*])|~~(\S(?:.*?\S)?)~~|!?\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>"')\]]+[^\s<>"')\].,;:!?])/;
var Markdown = memo(({ text }) => /* @__PURE__ */ a("div", {
	class: "text",
	children: renderBlocks(text.split("\n"))
}));
function renderBlocks(lines) {
	const made = [];
	for (let at = 0; at < lines.length;) {
		const [block, next] = renderBlock(lines, at);
		if (block) made.push(block);
		at = next;
	}
	return made;
}
function renderBlock(lines, at) {
	const line = lines[at] ?? "";
	const fence = FENCE.exec(line);
	if (fence) return renderCode(lines, at, fence[1] ?? "```");
	if (!line.trim()) return [null, at + 1];
	if (RULE.test(line)) return [/* @__PURE__ */ a("hr", {}), at + 1];
	if (ITEM.test(line)) return renderList(lines, at);
	if (isTable(lines, at)) return renderTable(lines, at);
	if (HEADING.test(line)) return [/* @__PURE__ */ a("p", {
		class: "heading",
		children: renderInline(line.replace(/^#+\s+/, ""))
	}), at + 1];
	if (line.startsWith(">")) return renderQuote(lines, at);
	let end = at + 1;
	while (end < lines.length && lines[end].trim() && !startsBlock(lines, end)) end += 1;
	return [/* @__PURE__ */ a("p", { children: joinLines(lines.slice(at, end)) }), end];
}
function startsBlock(lines, at) {
	const line = lines[at] ?? "";
	return FENCE.test(line) || ITEM.test(line) || line.startsWith(">") || isTable(lines, at);
}
function joinLines(lines) {
	return lines.flatMap((line, index) => index ? [/* @__PURE__ */ a("br", {}), renderInline(line)] : [renderInline(line)]);
}
function renderCode(lines, at, mark) {
	let end = at + 1;
	while (end < lines.length && !lines[end].trim().startsWith(mark)) end += 1;
	const code = lines.slice(at + 1, end).join("\n");
	return [/* @__PURE__ */ a("div", {
		class: "code",
		children: [/* @__PURE__ */ a(CopyButton, {
			text: code,
			label: words.copyCode
		}), /* @__PURE__ */ a("pre", {
			tabIndex: 0,
			children: /* @__PURE__ */ a("code", { children: code })
		})]
	}), end + 1];
}
function renderList(lines, at) {
	const ordered = /^\s*\d/.test(lines[at] ?? "");
	const items = [];
	for (let item; at < lines.length && (item = ITEM.exec(lines[at])); at += 1) items.push(/* @__PURE__ */ a("li", { children: renderInline(item[2] ?? "") }));
	return [ordered ? /* @__PURE__ */ a("ol", { children: items }) : /* @__PURE__ */ a("ul", { children: items }), at];
}
function renderQuote(lines, at) {
	let end = at;
	while (end < lines.length && lines[end].startsWith(">")) end += 1;
	return [/* @__PURE__ */ a("blockquote", { children: joinLines(lines.slice(at, end).map((line) => line.replace(/^>\s?/, ""))) }), end];
}
function isTable(lines, at) {
	const next = lines[at + 1] ?? "";
	return lines[at].includes("|") && next.includes("-") && DELIMITER.test(next);
}
function renderTable(lines, at) {
	const head = splitCells(lines[at]);
	let end = at + 2;
	while (end < lines.length && lines[end].trim() && lines[end].includes("|")) end += 1;
	const rows = lines.slice(at + 2, end).map(splitCells);
	return [/* @__PURE__ */ a("div", {
		class: "table",
		tabIndex: 0,
		role: "group",
		"aria-label": words.table,
		children: /* @__PURE__ */ a("table", { children: [/* @__PURE__ */ a("thead", { children: /* @__PURE__ */ a("tr", { children: head.map((cell) => /* @__PURE__ */ a("th", {
			scope: "col",
			children: renderInline(cell)
		})) }) }), /* @__PURE__ */ a("tbody", { children: rows.map((row) => /* @__PURE__ */ a("tr", { children: head.map((_, column) => /* @__PURE__ */ a("td", { children: renderInline(row[column] ?? "") })) })) })] })
	}), end];
}
function splitCells(line) {
	return (line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").match(/(?:\\\||`[^`]*`|[^|])+|(?<=\|)(?=\|)/g) ?? []).map((cell) => cell.trim().replaceAll("\\|", "|"));
}
function renderInline(text) {
	const made = [];
	for (let found; text && (found = INLINE.exec(text)); text = text.slice(found.index + found[0].length)) {
		const [, , code, strong, soft, struck, label, link, bare] = found;
		made.push(text.slice(0, found.index));
		if (code !== void 0) made.push(/* @__PURE__ */ a("code", { children: code }));
		else if (strong !== void 0) made.push(/* @__PURE__ */ a("strong", { children: renderInline(strong) }));
		else if (soft !== void 0) made.push(/* @__PURE__ */ a("em", { children: renderInline(soft) }));
		else if (struck !== void 0) made.push(/* @__PURE__ */ a("s", { children: renderInline(struck) }));
		else made.push(/* @__PURE__ */ a("a", {
			href: link ?? bare,
			target: "_blank",
			rel: "noopener noreferrer",
			children: label ?? bare
		}));
	}
	made.push(text);
	return made;
}
var GIST_LENGTH = 90;
function ToolCards({ cards }) {
	return /* @__PURE__ */ a("div", {
		class: "cards",
		children: cards.map((card) => /* @__PURE__ */ a(Card, { card }, card.id))
	});
}
function Card({ card }) {
	return /* @__PURE__ */ a("details", {
		class: `card ${card.state}`,
		children: [
			/* @__PURE__ */ a("summary", { children: [
				/* @__PURE__ */ a("span", {
					class: "tool",
					children: card.tool
				}),
				" ",
				/* @__PURE__ */ a("span", {
					class: "gist",
					children: summarize(card.arguments)
				}),
				" ",
				/* @__PURE__ */ a("span", {
					class: "outcome",
					children: [words.tool[card.state], card.seconds !== null && ` · ${formatSeconds(card.seconds)}`]
				})
			] }),
			/* @__PURE__ */ a("h3", { children: words.tool.arguments }),
			/* @__PURE__ */ a("pre", {
				tabIndex: 0,
				children: JSON.stringify(card.arguments, null, 2)
			}),
			card.effect && /* @__PURE__ */ a("p", {
				class: "hint",
				children: words.tool.effect(card.effect)
			}),
			card.result && /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h3", { children: words.tool.result }), /* @__PURE__ */ a("pre", {
				tabIndex: 0,
				children: card.result
			})] }),
			card.files.length > 0 && /* @__PURE__ */ a("ul", { children: card.files.map((file) => /* @__PURE__ */ a("li", { children: file.name || file.blob })) })
		]
	});
}
function summarize(given) {
	const text = Object.values(given).map((value) => typeof value === "string" ? value : JSON.stringify(value)).join(" · ");
	return text.length > GIST_LENGTH ? `${text.slice(0, GIST_LENGTH)}…` : text;
}
function ConversationRow({ row, agent }) {
	const undone = row.undone ? " undone" : "";
	switch (row.kind) {
		case "person": return /* @__PURE__ */ a("li", {
			class: `person${undone}${row.waiting ? " queued" : ""}`,
			children: [
				/* @__PURE__ */ a(By, {
					name: row.author,
					row
				}),
				/* @__PURE__ */ a("div", {
					class: "text",
					children: /* @__PURE__ */ a("p", {
						class: "plain",
						children: row.text
					})
				}),
				/* @__PURE__ */ a(Files, { files: row.files }),
				row.waiting ? /* @__PURE__ */ a("p", {
					class: "by",
					children: words.conversation.readNext
				}) : /* @__PURE__ */ a(PinButton, { row })
			]
		});
		case "agent": return /* @__PURE__ */ a("li", {
			class: `agent${undone}`,
			children: [
				/* @__PURE__ */ a(By, {
					name: agent,
					row
				}),
				/* @__PURE__ */ a(Markdown, { text: row.text }),
				/* @__PURE__ */ a(Files, { files: row.files }),
				/* @__PURE__ */ a(PinButton, { row }),
				row.thought > 0 && /* @__PURE__ */ a(Reasons, { seq: row.thought })
			]
		});
		case "tools": return /* @__PURE__ */ a("li", {
			class: `tools${undone}`,
			children: /* @__PURE__ */ a(ToolCards, { cards: row.cards })
		});
		case "notice":
		case "failure": return /* @__PURE__ */ a("li", {
			class: `notice ${row.kind}${undone}`,
			children: /* @__PURE__ */ a("p", {
				class: "plain",
				children: row.text
			})
		});
		default: return /* @__PURE__ */ a("li", {
			class: `aside${undone}`,
			children: row.text
		});
	}
}
function Reasons({ seq }) {
	const link = (part) => buildLink("inspect", [state.openId.value ?? "", part], { at: String(seq) });
	return /* @__PURE__ */ a("span", {
		class: "reasons",
		children: [
			/* @__PURE__ */ a("a", {
				href: link("why"),
				children: words.conversation.why
			}),
			" ",
			/* @__PURE__ */ a("a", {
				href: link("context"),
				children: words.conversation.context
			})
		]
	});
}
function By({ name, row }) {
	return /* @__PURE__ */ a("p", {
		class: "by",
		children: [name, row.pinned && ` · ${words.conversation.pinned}`]
	});
}
function Files({ files }) {
	if (!files.length) return null;
	return /* @__PURE__ */ a("ul", {
		class: "files",
		children: files.map((file) => /* @__PURE__ */ a("li", { children: [
			file.name || words.conversation.file,
			" ",
			/* @__PURE__ */ a("span", {
				class: "hint",
				children: formatBytes(file.size ?? 0)
			})
		] }))
	});
}
function PinButton({ row }) {
	const [refused, refuse] = d("");
	const press = async () => {
		const id = state.openId.value ?? "";
		try {
			const done = await call(row.pinned ? "POST /api/sessions/{id}/unpin" : "POST /api/sessions/{id}/pin", { id }, { seq: row.seq });
			refuse(done.done ? "" : done.message);
		} catch (error) {
			refuse(error instanceof ApiError ? error.message : String(error));
		}
	};
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("button", {
		class: "quiet pin",
		"aria-label": words.conversation.pinEntry(row.pinned, row.seq),
		onClick: () => void press(),
		children: row.pinned ? words.conversation.unpin : words.conversation.pin
	}), refused && /* @__PURE__ */ a("span", {
		class: "bad",
		role: "status",
		children: refused
	})] });
}
function OutgoingRow({ message }) {
	return /* @__PURE__ */ a("li", {
		class: "person waiting",
		children: [
			/* @__PURE__ */ a("div", {
				class: "text",
				children: /* @__PURE__ */ a("p", {
					class: "plain",
					children: message.text
				})
			}),
			/* @__PURE__ */ a(Files, { files: message.files ?? [] }),
			/* @__PURE__ */ a("p", {
				class: "by",
				children: message.refused ? /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("span", {
					class: "bad",
					children: words.conversation.notAccepted(message.refused)
				}), /* @__PURE__ */ a("button", {
					class: "quiet",
					onClick: () => state.outbox.remove(message.id),
					children: words.conversation.dismiss
				})] }) : message.sent ? words.conversation.accepted : state.isLive ? words.conversation.sending : words.conversation.waitsForGateway
			})
		]
	});
}
var FAILED = ["failed", "interrupted"];
function listRows(entries) {
	const facts = collectFacts(entries);
	const rows = [];
	for (const entry of entries) {
		if (entry.kind === "thought" && entry.op !== null) facts.thoughts.set(entry.op, entry.seq);
		const row = buildRow(entry, facts);
		if (row) rows.push(row);
	}
	const waiting = rows.filter((row) => row.waiting);
	return waiting.length ? [...rows.filter((row) => !row.waiting), ...waiting] : rows;
}
function collectFacts(entries) {
	const facts = {
		undone: /* @__PURE__ */ new Set(),
		pinned: /* @__PURE__ */ new Set(),
		taken: /* @__PURE__ */ new Map(),
		cards: /* @__PURE__ */ new Map(),
		failed: /* @__PURE__ */ new Map(),
		explained: /* @__PURE__ */ new Set(),
		thoughts: /* @__PURE__ */ new Map()
	};
	const pins = /* @__PURE__ */ new Map();
	for (const entry of entries) {
		const { kind, op, seq } = entry;
		const body = entry.body;
		if (!body) continue;
		if (kind === "began" || kind === "took") for (const heard of body.takes ?? []) facts.taken.set(heard, op ?? seq);
		if (kind === "thought") for (const call of body.calls ?? []) facts.cards.set(`${op} ${call.id}`, buildCard(call));
		if (kind === "called" || kind === "returned") followCall(facts.cards.get(`${op} ${body.call}`), entry, body);
		if (kind === "notified" && op !== null) facts.explained.add(op);
		if (kind === "ended" && FAILED.includes(body.outcome)) facts.failed.set(op ?? seq, body.reason ?? "");
		if (kind === "changed" && body.change?.type === "entry_pinned" && !body.change.session) pins.set(seq, body.change.seq);
		if (kind === "changed" && body.change?.type === "operations_undone") for (const undone of body.change.ops) {
			facts.undone.add(undone);
			pins.delete(undone);
		}
	}
	facts.pinned = new Set(pins.values());
	return facts;
}
function buildCard(call) {
	return {
		id: call.id,
		tool: call.tool,
		arguments: call.arguments ?? {},
		effect: "",
		state: "asked",
		result: "",
		files: [],
		seconds: null
	};
}
function followCall(card, entry, body) {
	if (!card) return;
	if (entry.kind === "called") {
		card.effect = body.effect;
		card.state = "running";
		card.began = entry.at;
	} else {
		card.state = body.unknown ? "unknown" : body.error ? "failed" : "done";
		card.result = body.text ?? "";
		card.files = [...body.files ?? [], ...body.attached ?? []];
		card.seconds = card.began === void 0 ? null : entry.at - card.began;
	}
}
function buildRow(entry, facts) {
	const body = entry.body;
	const taken = facts.taken.get(entry.seq);
	const op = entry.kind === "heard" ? taken ?? null : entry.op;
	const base = {
		key: String(entry.seq),
		seq: entry.seq,
		op,
		at: entry.at,
		author: entry.author.replace(/^person:(local:|http:)?/, ""),
		pinned: facts.pinned.has(entry.seq),
		undone: op !== null && facts.undone.has(op),
		waiting: false,
		cards: [],
		files: body?.attachments ?? [],
		thought: op !== null && facts.thoughts.get(op) || 0
	};
	switch (entry.kind) {
		case "heard": return {
			...base,
			kind: "person",
			text: body ? describeCommand(body) : words.log.erased,
			waiting: taken === void 0 && body?.asks !== false && !!body
		};
		case "said": return {
			...base,
			kind: "agent",
			text: body ? body.text : words.log.erased
		};
		case "notified": return body && {
			...base,
			kind: op !== null && facts.failed.has(op) ? "failure" : "notice",
			text: body.text
		};
		case "thought": {
			const cards = (body?.calls ?? []).map((call) => facts.cards.get(`${entry.op} ${call.id}`));
			return cards.length ? {
				...base,
				kind: "tools",
				text: body?.text ?? "",
				cards
			} : null;
		}
		case "ended": return body && describeEnd(body, op, facts) ? {
			...base,
			kind: "aside",
			text: describeEnd(body, op, facts)
		} : null;
		default: {
			const text = body ? describeAside(entry.kind, body) : "";
			return text ? {
				...base,
				kind: "aside",
				text
			} : null;
		}
	}
}
function describeEnd(body, op, facts) {
	if (body.outcome === "stopped") return words.log.stopped(body.reason ?? "");
	if (!FAILED.includes(body.outcome) || op !== null && facts.explained.has(op)) return "";
	return words.log.failed(body.outcome, body.reason ?? "");
}
function describeAside(kind, body) {
	if (kind === "noted") return body.action === "remove" ? words.log.removes(body.text) : words.log.remembers(body.text);
	if (kind === "compressed") return words.log.compressed;
	if (kind !== "changed") return "";
	switch (body.change?.type) {
		case "context_reset": return words.log.newContext;
		case "operations_undone": return words.log.undone;
		case "session_titled": return words.log.titled(body.change.title);
		case "branched_from": return words.log.branched;
		case "entry_pinned": return words.log.pinnedEntry(body.change.seq);
		default: return "";
	}
}
function describeCommand(body) {
	return body.command ? `/${body.command.name} ${body.command.argument ?? ""}`.trim() : describeHeard(body);
}
function describeHeard(body) {
	const quoted = (body.pieces ?? []).map((piece) => {
		const who = piece.own ? words.log.sender : [.../* @__PURE__ */ new Set([piece.name, piece.by])].filter(Boolean).join(" ");
		const lines = (piece.text ?? "").split(/\r\n|[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]/);
		return [words.log.quoted(piece.source, who || words.log.unknownAuthor), ...lines.map((line) => `| ${line}`)].join("\n");
	});
	return [body.text, ...quoted].filter(Boolean).join("\n");
}
function TurnState({ session, writes }) {
	const { state: reached, since } = connection.value;
	if (reached === "offline") return /* @__PURE__ */ a("li", {
		class: "aside offline",
		role: "status",
		children: words.conversation.notConnected(formatTime(since / 1e3))
	}, "offline");
	if (!session?.busy || writes) return null;
	return /* @__PURE__ */ a(Working, { session });
}
function Working({ session }) {
	const wait = useWait(session);
	if (!wait) return /* @__PURE__ */ a("li", {
		class: "aside thinking",
		children: [/* @__PURE__ */ a("span", {
			class: "dots",
			"aria-hidden": "true",
			children: [
				/* @__PURE__ */ a("i", {}),
				/* @__PURE__ */ a("i", {}),
				/* @__PURE__ */ a("i", {})
			]
		}), words.conversation.isWorking(session.agent)]
	}, "thinking");
	return /* @__PURE__ */ a("li", {
		class: "notice failure",
		role: "status",
		children: [
			/* @__PURE__ */ a("p", {
				class: "plain",
				children: wait.reason
			}),
			/* @__PURE__ */ a("p", { children: [words.conversation.attempts(wait.attempts), wait.retry_at !== null && ` ${words.conversation.nextTry(formatExactTime(wait.retry_at))}`] }),
			/* @__PURE__ */ a("p", {
				class: "actions",
				children: [state.caller.value?.operator && /* @__PURE__ */ a("button", {
					class: "quiet",
					onClick: () => void call("POST /api/retry").catch(() => void 0),
					children: words.conversation.tryNow
				}), /* @__PURE__ */ a(StopButton, { id: session.id })]
			})
		]
	}, "wait");
}
var LOOKS_MS = [
	1500,
	5e3,
	15e3,
	6e4
];
var AFTER_TRY_MS = 500;
function useWait(session) {
	const [wait, setWait] = d(null);
	A(() => {
		let timer = 0;
		let looks = 0;
		let ended = false;
		const look = async () => {
			const found = await state.loadWait(session.id).catch(() => null);
			if (ended) return;
			setWait(found);
			plan(found?.retry_at ? Math.max(LOOKS_MS[0], found.retry_at * 1e3 - Date.now() + AFTER_TRY_MS) : LOOKS_MS[looks++]);
		};
		const plan = (ms) => {
			if (ms !== void 0) timer = setTimeout(look, ms);
		};
		plan(LOOKS_MS[looks++]);
		return () => {
			ended = true;
			clearTimeout(timer);
		};
	}, [session.id, session.last_seq]);
	return wait;
}
function Conversation() {
	const session = state.getOpen();
	const log = state.getOpenLog();
	const draft = state.getOpenDraft();
	const rows = w(() => listRows(log.entries), [
		log,
		log.entries.length,
		log.before
	]);
	const outgoing = state.listOutgoing();
	const end = T(null);
	const follow = useFollow(end, [
		rows.length,
		outgoing.length,
		draft?.text.length,
		state.openId.value
	]);
	const agent = session?.agent ?? state.newChat.value?.agent ?? "";
	const settled = rows.filter((row) => !row.waiting);
	return /* @__PURE__ */ a("section", {
		class: "conversation",
		"aria-label": words.conversation.name,
		children: [/* @__PURE__ */ a("div", {
			class: "scroll",
			ref: follow,
			role: "log",
			"aria-live": "polite",
			"aria-label": words.conversation.messages,
			tabIndex: 0,
			children: [/* @__PURE__ */ a("ol", {
				class: "messages",
				children: [
					log.before > 0 && /* @__PURE__ */ a("li", {
						class: "aside",
						children: /* @__PURE__ */ a("button", {
							class: "quiet",
							onClick: () => void state.logs.loadEarlier(state.openId.value ?? ""),
							children: words.conversation.earlier
						})
					}),
					!rows.length && !outgoing.length && /* @__PURE__ */ a(Empty, {}),
					settled.map((row) => /* @__PURE__ */ a(ConversationRow, {
						row,
						agent
					}, row.key)),
					draft && /* @__PURE__ */ a("li", {
						class: "agent draft",
						"aria-hidden": "true",
						children: [/* @__PURE__ */ a("p", {
							class: "by",
							children: agent
						}), /* @__PURE__ */ a(Markdown, { text: draft.text })]
					}, "draft"),
					/* @__PURE__ */ a(TurnState, {
						session,
						writes: Boolean(draft)
					}),
					rows.slice(settled.length).map((row) => /* @__PURE__ */ a(ConversationRow, {
						row,
						agent
					}, row.key)),
					outgoing.map((message) => /* @__PURE__ */ a(OutgoingRow, { message }, message.id))
				]
			}), /* @__PURE__ */ a("div", { ref: end })]
		}), /* @__PURE__ */ a(Composer, { session })]
	});
}
function Empty() {
	return /* @__PURE__ */ a("li", {
		class: "empty",
		children: [
			/* @__PURE__ */ a("h2", { children: words.conversation.emptyTitle }),
			/* @__PURE__ */ a("p", { children: words.conversation.emptyText }),
			state.caller.value?.operator && /* @__PURE__ */ a(OfflineHint, {}),
			state.newChat.value && state.agents.value.length > 1 && /* @__PURE__ */ a("p", { children: /* @__PURE__ */ a("label", { children: [words.agent, /* @__PURE__ */ a("select", {
				value: state.newChat.value.agent,
				onChange: (event) => state.startConversation(event.currentTarget.value),
				children: state.agents.value.map((agent) => /* @__PURE__ */ a("option", {
					value: agent,
					children: agent
				}))
			})] }) })
		]
	});
}
function OfflineHint() {
	const { value } = useResource((signal) => call("GET /api/models", {}, void 0, signal), []);
	if (!value?.models.every((it) => it.provider === "offline" || !it.agents.length)) return null;
	return /* @__PURE__ */ a("p", { children: /* @__PURE__ */ a("a", {
		href: buildLink("setup"),
		children: words.setup.start
	}) });
}
function LogView() {
	const log = state.getOpenLog();
	const entries = log.entries.slice(-400);
	const end = T(null);
	const follow = useFollow(end, [entries.length, state.openId.value]);
	return /* @__PURE__ */ a("aside", {
		class: "log",
		"aria-label": words.log.name,
		children: [/* @__PURE__ */ a("h2", { children: [
			words.log.name,
			" ",
			/* @__PURE__ */ a("span", {
				class: "count",
				children: log.entries.at(-1)?.seq ?? 0
			})
		] }), /* @__PURE__ */ a("div", {
			class: "scroll",
			ref: follow,
			tabIndex: 0,
			children: [
				!entries.length && /* @__PURE__ */ a("p", {
					class: "hint",
					children: words.log.hint
				}),
				/* @__PURE__ */ a("ol", { children: entries.map((entry) => /* @__PURE__ */ a(Line, { entry }, entry.seq)) }),
				/* @__PURE__ */ a("div", { ref: end })
			]
		})]
	});
}
var Line = memo(({ entry }) => /* @__PURE__ */ a("li", {
	class: `kind-${entry.kind}`,
	children: /* @__PURE__ */ a("details", { children: [
		/* @__PURE__ */ a("summary", { children: [
			/* @__PURE__ */ a("span", {
				class: "seq",
				children: entry.seq
			}),
			/* @__PURE__ */ a("span", {
				class: "kind",
				children: entry.kind
			}),
			/* @__PURE__ */ a("span", {
				class: "gist",
				children: summarizeEntry(entry)
			}),
			/* @__PURE__ */ a("time", {
				datetime: (/* @__PURE__ */ new Date(entry.at * 1e3)).toISOString(),
				title: formatFull(entry.at),
				children: formatExactTime(entry.at)
			})
		] }),
		/* @__PURE__ */ a("pre", {
			tabIndex: 0,
			children: JSON.stringify(entry, null, 2)
		}),
		/* @__PURE__ */ a("a", {
			class: "quiet",
			href: buildLink("inspect", [state.openId.peek() ?? "", "entry"], { at: String(entry.seq) }),
			children: words.log.details
		})
	] })
}));
function summarizeEntry({ kind, body: given, op }) {
	if (given === null) return words.log.erased;
	const body = given;
	switch (kind) {
		case "heard": return describeHeard(body);
		case "said":
		case "notified": return body.text;
		case "noted": return body.action === "remove" ? words.log.removes(body.text) : body.text;
		case "began": return `${body.type} · ${words.log.takes(body.takes ?? [])}`;
		case "took": return words.log.takes(body.takes ?? []);
		case "thought": return body.calls?.length ? words.log.calls(body.calls.map((call) => call.tool)) : body.text;
		case "called": return `${body.tool} · ${body.effect}`;
		case "returned": return body.text ?? "";
		case "ended": return `${body.outcome ?? "done"}${body.usage?.input ? ` · ${words.log.usage(body.usage.input, body.usage.output ?? 0)}` : ""}`;
		case "compressed": return words.log.covers(body.covers);
		case "changed": return body.change?.type ?? "";
		default: return op ? words.log.operation(op) : "";
	}
}
function SessionList({ onChosen }) {
	const choose = (act) => () => {
		act();
		onChosen();
	};
	return /* @__PURE__ */ a("nav", {
		class: "sessions",
		"aria-label": words.sessions.name,
		children: [
			/* @__PURE__ */ a("h2", { children: words.sessions.name }),
			/* @__PURE__ */ a("button", {
				class: "new",
				onClick: choose(() => state.startConversation()),
				children: words.sessions.new
			}),
			/* @__PURE__ */ a("ol", {
				class: "scroll",
				children: state.listSessions().map((session) => /* @__PURE__ */ a(Item, {
					session,
					onChosen: choose(() => state.open(session.id))
				}, session.id))
			})
		]
	});
}
function nameSession(session) {
	return session.title || session.first || parseAddress(session.address).chat || session.id;
}
function Item({ session, onChosen }) {
	const { platform } = parseAddress(session.address);
	return /* @__PURE__ */ a("li", { children: /* @__PURE__ */ a("button", {
		"aria-current": session.id === state.openId.value ? "true" : void 0,
		onClick: onChosen,
		children: [
			/* @__PURE__ */ a("span", {
				class: "title",
				children: nameSession(session)
			}),
			/* @__PURE__ */ a("span", {
				class: "where",
				children: [
					session.agent,
					platform !== "http" && ` · ${platform}`,
					session.busy && /* @__PURE__ */ a("span", {
						class: "working",
						children: words.sessions.working
					})
				]
			}),
			/* @__PURE__ */ a("time", {
				datetime: (/* @__PURE__ */ new Date(session.at * 1e3)).toISOString(),
				title: formatFull(session.at),
				children: formatShort(session.at)
			})
		]
	}) });
}
function Facts({ rows }) {
	return /* @__PURE__ */ a("dl", {
		class: "facts",
		children: rows.filter(([, value]) => value !== "" && value !== null && value !== void 0 && value !== false).map(([name, value]) => /* @__PURE__ */ a("div", { children: [/* @__PURE__ */ a("dt", { children: name }), /* @__PURE__ */ a("dd", { children: value })] }, name))
	});
}
function Loaded({ resource, children }) {
	const { value, error } = resource;
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a(Problem, { error }), value !== void 0 ? children(value) : error ? /* @__PURE__ */ a("button", {
		class: "quiet",
		onClick: resource.reload,
		children: words.tryAgain
	}) : /* @__PURE__ */ a("p", {
		class: "hint",
		role: "status",
		children: words.loading
	})] });
}
function Action({ label, act, confirm, danger, disabled, onDone }) {
	const [phase, setPhase] = d("idle");
	const [said, say] = d("");
	const [error, fail] = d(null);
	const refuse = T(null);
	A(() => {
		if (phase === "asking") refuse.current?.focus();
	}, [phase]);
	const run = async () => {
		setPhase("busy");
		fail(null);
		try {
			say(await act() ?? "");
			onDone?.();
		} catch (caught) {
			fail(caught);
		}
		setPhase("idle");
	};
	return /* @__PURE__ */ a("span", {
		class: "action",
		children: [
			phase === "asking" ? /* @__PURE__ */ a("span", {
				class: "confirm",
				role: "group",
				"aria-label": label,
				children: [
					/* @__PURE__ */ a("span", { children: confirm }),
					/* @__PURE__ */ a("button", {
						type: "button",
						class: "danger",
						onClick: () => void run(),
						children: label
					}),
					/* @__PURE__ */ a("button", {
						type: "button",
						class: "plain-button",
						ref: refuse,
						onClick: () => setPhase("idle"),
						children: words.cancel
					})
				]
			}) : /* @__PURE__ */ a("button", {
				type: "button",
				class: danger ? "danger" : "plain-button",
				disabled: disabled || phase === "busy",
				onClick: () => confirm ? setPhase("asking") : void run(),
				children: label
			}),
			said && /* @__PURE__ */ a("span", {
				class: "hint",
				role: "status",
				children: said
			}),
			/* @__PURE__ */ a(Problem, { error })
		]
	});
}
function Table({ label, rows, columns, empty, getKey }) {
	if (!rows.length) return /* @__PURE__ */ a("p", {
		class: "hint",
		children: empty
	});
	return /* @__PURE__ */ a("div", {
		class: "table",
		tabIndex: 0,
		role: "group",
		"aria-label": label,
		children: /* @__PURE__ */ a("table", {
			class: "data",
			children: [/* @__PURE__ */ a("thead", { children: /* @__PURE__ */ a("tr", { children: columns.map((column) => /* @__PURE__ */ a("th", {
				scope: "col",
				class: column.isNumber ? "number" : void 0,
				children: column.title
			})) }) }), /* @__PURE__ */ a("tbody", { children: rows.map((row) => /* @__PURE__ */ a("tr", { children: columns.map((column) => /* @__PURE__ */ a("td", {
				class: column.isNumber ? "number" : void 0,
				children: column.show(row)
			})) }, getKey(row))) })]
		})
	});
}
function usePages(load, keys, follows = null) {
	const [shown, show] = d({
		items: [],
		error: null,
		loading: true,
		next: void 0
	});
	const running = T(null);
	const read = b((cursor) => {
		running.current?.abort();
		const abort = running.current = new AbortController();
		show((before) => ({
			...before,
			loading: true
		}));
		load(cursor, abort.signal).then(({ items, next }) => {
			if (abort.signal.aborted) return;
			running.current = null;
			show((before) => ({
				items: cursor === void 0 ? items : [...before.items, ...items],
				error: null,
				loading: false,
				next
			}));
		}, (error) => {
			if (abort.signal.aborted) return;
			running.current = null;
			show((before) => ({
				...before,
				error,
				loading: false
			}));
		});
	}, keys);
	const reload = b(() => read(void 0), [read]);
	A(() => {
		show({
			items: [],
			error: null,
			loading: true,
			next: void 0
		});
		reload();
		return () => running.current?.abort();
	}, [reload]);
	useLive(reload, follows);
	const loadMore = () => {
		if (running.current || shown.next === null || shown.next === void 0) return;
		read(shown.next);
	};
	return {
		items: shown.items,
		error: shown.error,
		loading: shown.loading,
		isComplete: shown.next === null,
		loadMore,
		reload
	};
}
function Field({ label, value, onInput, type = "text", placeholder, hint }) {
	const id = P();
	return /* @__PURE__ */ a("p", {
		class: "field",
		children: [
			/* @__PURE__ */ a("label", {
				for: id,
				children: label
			}),
			/* @__PURE__ */ a("input", {
				id,
				type,
				value,
				placeholder,
				onInput: (event) => onInput(event.currentTarget.value)
			}),
			hint && /* @__PURE__ */ a("span", {
				class: "hint",
				children: hint
			})
		]
	});
}
function Choice({ label, value, options, onChange }) {
	const id = P();
	return /* @__PURE__ */ a("p", {
		class: "field",
		children: [/* @__PURE__ */ a("label", {
			for: id,
			children: label
		}), /* @__PURE__ */ a("select", {
			id,
			value,
			onChange: (event) => onChange(event.currentTarget.value),
			children: options.map(([name, title]) => /* @__PURE__ */ a("option", {
				value: name,
				children: title
			}))
		})]
	});
}
function saveFile(name, text, type = "application/x-ndjson") {
	const url = URL.createObjectURL(new Blob([text], { type }));
	const link = document.createElement("a");
	link.href = url;
	link.download = name;
	link.click();
	setTimeout(() => URL.revokeObjectURL(url));
}
var BEYOND = 8;
function VirtualList({ label, items, rowHeight, getKey, onNearEnd, children }) {
	const box = T(null);
	const [visible, setVisible] = d({
		first: 0,
		last: 40
	});
	A(() => {
		const element = box.current;
		const look = () => {
			const first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - BEYOND);
			const last = Math.ceil((element.scrollTop + element.clientHeight) / rowHeight) + BEYOND;
			setVisible((before) => before.first === first && before.last === last ? before : {
				first,
				last
			});
		};
		const observer = new ResizeObserver(look);
		observer.observe(element);
		element.addEventListener("scroll", look, { passive: true });
		look();
		return () => {
			observer.disconnect();
			element.removeEventListener("scroll", look);
		};
	}, [rowHeight]);
	A(() => {
		if (visible.last >= items.length) onNearEnd?.();
	}, [visible.last, items.length]);
	const shown = items.slice(visible.first, visible.last);
	return /* @__PURE__ */ a("div", {
		class: "virtual",
		ref: box,
		tabIndex: 0,
		role: "group",
		"aria-label": label,
		children: /* @__PURE__ */ a("ol", {
			style: { height: `${items.length * rowHeight}px` },
			children: shown.map((item, index) => /* @__PURE__ */ a("li", {
				style: {
					height: `${rowHeight}px`,
					top: `${(visible.first + index) * rowHeight}px`
				},
				"aria-setsize": items.length,
				"aria-posinset": visible.first + index + 1,
				children: children(item)
			}, getKey(item)))
		})
	});
}
export { call as A, connection as B, formatTime as C, parseAddress as D, state as E, place as F, __vitePreload as G, login as H, replacePlace as I, LoginPage as L, buildLink as M, followAddress as N, ApiError as O, go as P, OfferedLogin as R, formatShort as S, useResource as T, language as U, readStream as V, words as W, formatExactTime as _, usePages as a, formatNumber as b, Loaded as c, nameSession as d, LogView as f, formatBytes as g, useFollow as h, Field as i, callForText as j, buildUrl as k, Facts as l, CopyButton as m, saveFile as n, Table as o, Conversation as p, Choice as r, Action as s, VirtualList as t, SessionList as u, formatFull as v, Problem as w, formatSeconds as x, formatMoney as y, EventStream as z };
