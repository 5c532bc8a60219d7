import { A as call, T as useResource, W as words, b as formatNumber, c as Loaded, g as formatBytes, o as Table, s as Action, v as formatFull } from "./shared.js";
import { f as $, t as a } from "./preact.js";
function BackupsPage() {
	const backups = useResource((signal) => call("GET /api/backups", {}, void 0, signal), []);
	const make = async () => {
		const made = await call("POST /api/backups", {}, {});
		return words.backups.made(made.path, formatBytes(made.bytes), made.sound);
	};
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.backups }),
		/* @__PURE__ */ a(Action, {
			label: words.backups.make,
			act: make,
			onDone: backups.reload
		}),
		/* @__PURE__ */ a(Loaded, {
			resource: backups,
			children: ({ backups: rows }) => /* @__PURE__ */ a(Table, {
				label: words.pages.backups,
				rows,
				getKey: (it) => it.path,
				empty: words.backups.none,
				columns: [
					{
						title: words.delivery.at,
						show: (it) => formatFull(it.at)
					},
					{
						title: words.backups.path,
						show: (it) => /* @__PURE__ */ a("code", { children: it.path })
					},
					{
						title: words.backups.size,
						show: (it) => formatBytes(it.bytes),
						isNumber: true
					},
					{
						title: words.backups.upto,
						show: (it) => formatNumber(it.pos),
						isNumber: true
					},
					{
						title: words.delivery.state,
						show: (it) => /* @__PURE__ */ a("span", {
							class: it.sound ? "good" : "bad",
							children: it.sound ? words.backups.sound : words.backups.damaged
						})
					}
				]
			})
		})
	] });
}
export { BackupsPage as default };
