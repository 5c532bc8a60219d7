import { f as $, t as a, u as d } from "./preact.js";
import { A as call, C as formatTime, E as state, W as words, i as Field, m as CopyButton, r as Choice, s as Action } from "./shared.js";
import { t as Failure } from "./test_result.js";
var VERSIONS = [
	{
		blocks: 1,
		data: 16,
		check: 10
	},
	{
		blocks: 1,
		data: 28,
		check: 16
	},
	{
		blocks: 1,
		data: 44,
		check: 26
	},
	{
		blocks: 2,
		data: 32,
		check: 18
	},
	{
		blocks: 2,
		data: 43,
		check: 24
	},
	{
		blocks: 4,
		data: 27,
		check: 16
	}
];
function encodeQr(text) {
	const bytes = [...new TextEncoder().encode(text)];
	const version = 1 + VERSIONS.findIndex(({ blocks, data }) => bytes.length + 2 <= blocks * data);
	return version ? drawCode(version, interleave(version, fillWords(version, bytes))) : null;
}
function fillWords(version, bytes) {
	const { blocks, data } = VERSIONS[version - 1];
	const bits = [
		4,
		...[bytes.length, ...bytes].flatMap((byte) => [byte >> 4, byte & 15]),
		0
	];
	const words = [];
	for (let at = 0; at < bits.length; at += 2) words.push(bits[at] << 4 | (bits[at + 1] ?? 0));
	for (let pad = 236; words.length < blocks * data; pad ^= 253) words.push(pad);
	return words;
}
function interleave(version, words) {
	const { blocks, data, check } = VERSIONS[version - 1];
	const parts = Array.from({ length: blocks }, (_, block) => words.slice(block * data, (block + 1) * data));
	const checks = parts.map((part) => computeCheck(part, check));
	const inTurn = (rows, length) => Array.from({ length }, (_, at) => rows.map((row) => row[at])).flat();
	return [...inTurn(parts, data), ...inTurn(checks, check)];
}
function multiply(a, b) {
	let product = 0;
	for (let bit = 7; bit >= 0; bit--) {
		product = product << 1 ^ (product >> 7) * 285;
		product ^= (b >> bit & 1) * a;
	}
	return product;
}
function computeCheck(words, length) {
	let generator = [1];
	for (let at = 0, root = 1; at < length; at++, root = multiply(root, 2)) generator = [...generator, 0].map((value, place) => value ^ multiply(place ? generator[place - 1] : 0, root));
	const rest = [...words, ...Array(length).fill(0)];
	for (let at = 0; at < words.length; at++) {
		const factor = rest[at];
		generator.forEach((value, place) => rest[at + place] = rest[at + place] ^ multiply(value, factor));
	}
	return rest.slice(words.length);
}
function drawCode(version, words) {
	const size = 17 + 4 * version;
	const modules = Array.from({ length: size }, () => Array(size).fill(false));
	const fixed = modules.map((row) => row.map(() => false));
	const set = (row, column, dark) => {
		if (row < 0 || column < 0 || row >= size || column >= size) return;
		modules[row][column] = dark;
		fixed[row][column] = true;
	};
	const square = (row, column, radius, isDark) => {
		for (let y = -radius; y <= radius; y++) for (let x = -radius; x <= radius; x++) set(row + y, column + x, isDark(Math.max(Math.abs(x), Math.abs(y))));
	};
	for (let at = 0; at < size; at++) for (const [row, column] of [[6, at], [at, 6]]) set(row, column, at % 2 === 0);
	for (const [row, column] of [
		[3, 3],
		[3, size - 4],
		[size - 4, 3]
	]) square(row, column, 4, (ring) => ring !== 2 && ring !== 4);
	if (version > 1) square(size - 7, size - 7, 2, (ring) => ring !== 1);
	drawFormat(size, set);
	drawWords(words, modules, fixed);
	return modules;
}
function drawFormat(size, set) {
	let rest = 0;
	for (let at = 0; at < 10; at++) rest = rest << 1 ^ (rest >> 9) * 1335;
	const bits = (0 | rest) ^ 21522;
	for (let at = 0; at < 15; at++) {
		const dark = (bits >> at & 1) === 1;
		if (at < 8) set(at < 6 ? at : at + 1, 8, dark);
		else set(8, at === 8 ? 7 : 14 - at, dark);
		if (at < 8) set(8, size - 1 - at, dark);
		else set(size - 15 + at, 8, dark);
	}
	set(size - 8, 8, true);
}
function drawWords(words, modules, fixed) {
	const size = modules.length;
	let bit = 0;
	let up = true;
	for (let right = size - 1; right > 0; right -= 2, up = !up) {
		if (right === 6) right = 5;
		for (let step = 0; step < size; step++) {
			const row = up ? size - 1 - step : step;
			for (const column of [right, right - 1]) {
				if (fixed[row][column]) continue;
				const dark = ((words[bit >> 3] ?? 0) >> 7 - (bit & 7) & 1) === 1;
				bit += 1;
				modules[row][column] = dark !== ((row + column) % 2 === 0);
			}
		}
	}
}
var QUIET = 4;
function QrCode({ text, label }) {
	const modules = encodeQr(text);
	if (!modules) return null;
	const size = modules.length + 8;
	const path = modules.flatMap((row, y) => row.map((dark, x) => dark ? `M${x + QUIET} ${y + QUIET}h1v1h-1z` : "")).join("");
	return /* @__PURE__ */ a("svg", {
		class: "qr",
		viewBox: `0 0 ${size} ${size}`,
		role: "img",
		"aria-label": label,
		children: /* @__PURE__ */ a("path", { d: path })
	});
}
function InvitationMaker({ platform, account }) {
	const [person, name] = d(state.caller.value?.name ?? "");
	const [made, show] = d(null);
	return /* @__PURE__ */ a("div", {
		class: "invitation",
		children: [/* @__PURE__ */ a("div", {
			class: "row",
			children: [/* @__PURE__ */ a(Field, {
				label: words.setup.invited,
				value: person,
				onInput: name
			}), /* @__PURE__ */ a(Action, {
				label: words.setup.invite,
				act: async () => show(await call("POST /api/invitations", {}, {
					platform,
					account,
					person: person.trim()
				}))
			})]
		}), made && /* @__PURE__ */ a($, { children: [
			/* @__PURE__ */ a("p", { children: words.setup.invitation(made.name, formatTime(made.until)) }),
			/* @__PURE__ */ a("p", { children: [
				/* @__PURE__ */ a("a", {
					href: made.link,
					target: "_blank",
					rel: "noopener noreferrer",
					children: made.link
				}),
				" ",
				/* @__PURE__ */ a(CopyButton, {
					text: made.link,
					label: words.copy
				})
			] }),
			/* @__PURE__ */ a(QrCode, {
				text: made.link,
				label: words.setup.qr
			})
		] })]
	});
}
var FIRST = "telegram";
function AccountForm({ setup, onDone }) {
	const offers = setup.platforms.filter((it) => it.settings.length || it.problem);
	const [platform, choose] = d((offers.find((it) => it.name === FIRST) ?? offers[0])?.name ?? "");
	const [agent, setAgent] = d("");
	const [values, write] = d({});
	const [result, show] = d(null);
	const offer = offers.find((it) => it.name === platform);
	if (!offer) return null;
	const test = async () => {
		const answer = await call("POST /api/setup/account", {}, {
			platform,
			account: agent,
			agent,
			values,
			write: true
		});
		show(answer);
		if (!answer.written) return;
		write({});
		onDone();
	};
	return /* @__PURE__ */ a("form", {
		class: "stack",
		onSubmit: (event) => event.preventDefault(),
		children: [
			/* @__PURE__ */ a("div", {
				class: "row",
				children: [
					/* @__PURE__ */ a(Choice, {
						label: words.sessions.platform,
						value: platform,
						options: offers.map((it) => [it.name, it.name]),
						onChange: (name) => {
							choose(name);
							write({});
							show(null);
						}
					}),
					state.agents.value.length > 1 && /* @__PURE__ */ a(Choice, {
						label: words.agent,
						value: agent,
						options: [["", words.memories.defaultAgent], ...state.agents.value.map((it) => [it, it])],
						onChange: setAgent
					}),
					offer.settings.map((it) => /* @__PURE__ */ a(Field, {
						label: it.question,
						value: values[it.name] ?? "",
						type: it.is_secret ? "password" : "text",
						onInput: (value) => write({
							...values,
							[it.name]: value
						})
					}, `${platform} ${it.name}`)),
					!offer.problem && /* @__PURE__ */ a(Action, {
						label: words.setup.connect,
						act: test
					})
				]
			}),
			offer.problem && /* @__PURE__ */ a(Failure, {
				message: offer.problem,
				remedy: offer.remedy
			}),
			result && !result.works && /* @__PURE__ */ a(Failure, {
				message: result.message,
				remedy: result.remedy
			}),
			result?.works && /* @__PURE__ */ a("p", {
				class: "good",
				role: "status",
				children: [
					words.setup.connected(platform, result.name),
					" ",
					result.hello
				]
			}),
			result?.written && /* @__PURE__ */ a(InvitationMaker, {
				platform,
				account: result.account
			})
		]
	});
}
export { InvitationMaker as n, AccountForm as t };
