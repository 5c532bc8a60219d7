import { A as call, T as useResource, W as words, c as Loaded, o as Table, s as Action, v as formatFull } from "./shared.js";
import { f as $, t as a } from "./preact.js";
function LoginsPage() {
	const logins = useResource((signal) => call("GET /api/logins", {}, void 0, signal), []);
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h2", { children: words.pages.logins }), /* @__PURE__ */ a(Loaded, {
		resource: logins,
		children: ({ logins: rows }) => /* @__PURE__ */ a(Table, {
			label: words.pages.logins,
			rows,
			getKey: (it) => it.id,
			empty: words.logins.none,
			columns: [
				{
					title: words.logins.browser,
					show: (it) => `${it.browser}${it.current ? ` (${words.logins.current})` : ""}`
				},
				{
					title: words.logins.token,
					show: (it) => it.token
				},
				{
					title: words.logins.created,
					show: (it) => formatFull(it.created_at)
				},
				{
					title: words.logins.used,
					show: (it) => formatFull(it.used_at)
				},
				{
					title: words.actions,
					show: (it) => /* @__PURE__ */ a(Action, {
						label: words.logins.end,
						confirm: it.current ? words.logins.endsThis : void 0,
						act: async () => void await call("POST /api/logins/{id}/end", { id: it.id }),
						onDone: logins.reload
					})
				}
			]
		})
	})] });
}
export { LoginsPage as default };
