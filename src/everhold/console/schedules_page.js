import { A as call, T as useResource, W as words, c as Loaded, o as Table, s as Action, v as formatFull } from "./shared.js";
import { f as $, t as a } from "./preact.js";
function SchedulesPage() {
	const schedules = useResource((signal) => call("GET /api/schedules", {}, void 0, signal), [], (entry) => ["ended", "heard"].includes(entry.kind));
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.schedules }),
		/* @__PURE__ */ a("p", {
			class: "hint",
			children: words.schedules.about
		}),
		/* @__PURE__ */ a(Loaded, {
			resource: schedules,
			children: ({ schedules: rows }) => /* @__PURE__ */ a(Table, {
				label: words.pages.schedules,
				rows,
				getKey: (it) => it.id,
				empty: words.schedules.none,
				columns: [
					{
						title: words.schedules.when,
						show: (it) => it.when
					},
					{
						title: words.schedules.text,
						show: (it) => it.text
					},
					{
						title: words.agent,
						show: (it) => it.agent
					},
					{
						title: words.schedules.chat,
						show: (it) => `${it.platform} ${it.chat}`
					},
					{
						title: words.schedules.next,
						show: (it) => it.paused ? words.schedules.paused : it.next_local || words.schedules.never
					},
					{
						title: words.schedules.last,
						show: (it) => it.last ? formatFull(it.last) : ""
					},
					{
						title: words.actions,
						show: (it) => /* @__PURE__ */ a(Action, {
							label: words.schedules.remove,
							confirm: words.schedules.confirmRemove,
							act: async () => void await call("POST /api/schedules/{id}/delete", { id: it.id }),
							onDone: schedules.reload
						})
					}
				]
			})
		})
	] });
}
export { SchedulesPage as default };
