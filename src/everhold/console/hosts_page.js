import { A as call, T as useResource, W as words, c as Loaded, o as Table, s as Action, x as formatSeconds } from "./shared.js";
import { f as $, t as a } from "./preact.js";
function HostsPage() {
	const hosts = useResource((signal) => call("GET /api/hosts", {}, void 0, signal), []);
	return /* @__PURE__ */ a($, { children: [
		/* @__PURE__ */ a("h2", { children: words.pages.hosts }),
		/* @__PURE__ */ a(Loaded, {
			resource: hosts,
			children: (found) => /* @__PURE__ */ a($, { children: [
				!found.shared && /* @__PURE__ */ a("p", {
					class: "hint",
					children: words.hosts.single
				}),
				found.shared && /* @__PURE__ */ a("p", {
					class: "hint",
					children: words.hosts.clock(formatSeconds(Math.abs(found.clock_difference_seconds)))
				}),
				/* @__PURE__ */ a(Table, {
					label: words.pages.hosts,
					rows: found.hosts,
					getKey: (it) => it.id,
					empty: words.hosts.none,
					columns: [
						{
							title: words.hosts.host,
							show: (it) => `${it.name}${it.own ? ` (${words.hosts.own})` : ""}`
						},
						{
							title: words.delivery.state,
							show: (it) => /* @__PURE__ */ a("span", {
								class: it.alive ? "good" : "bad",
								children: it.draining ? words.hosts.draining : it.alive ? words.hosts.alive : words.hosts.gone
							})
						},
						{
							title: words.hosts.version,
							show: (it) => it.version
						},
						{
							title: words.hosts.since,
							show: (it) => formatSeconds(it.started_seconds)
						},
						{
							title: words.hosts.renewed,
							show: (it) => formatSeconds(it.renewed_seconds)
						},
						{
							title: words.hosts.accounts,
							show: (it) => it.accounts.join(", ")
						},
						{
							title: words.hosts.cursors,
							show: (it) => Object.entries(it.cursors).map(([name, number]) => `${name} ${number}`).join(", ")
						},
						{
							title: words.hosts.differ,
							show: (it) => it.settings_differ.join(", ")
						}
					]
				})
			] })
		}),
		/* @__PURE__ */ a(Action, {
			label: words.refresh,
			act: async () => hosts.reload()
		}),
		/* @__PURE__ */ a(Action, {
			label: words.hosts.drain,
			danger: true,
			confirm: words.hosts.confirmDrain,
			act: async () => void await call("POST /api/drain"),
			onDone: hosts.reload
		})
	] });
}
export { HostsPage as default };
