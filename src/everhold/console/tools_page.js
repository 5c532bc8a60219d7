import { A as call, T as useResource, W as words, c as Loaded, o as Table } from "./shared.js";
import { n as ConfirmTools } from "./inbox_page.js";
import { f as $, t as a } from "./preact.js";
function ToolsPage() {
	const tools = useResource((signal) => call("GET /api/tools", {}, void 0, signal), []);
	return /* @__PURE__ */ a($, { children: [/* @__PURE__ */ a("h2", { children: words.pages.tools }), /* @__PURE__ */ a(Loaded, {
		resource: tools,
		children: ({ servers, plugins }) => /* @__PURE__ */ a($, { children: [
			!servers.length && /* @__PURE__ */ a("p", {
				class: "hint",
				children: words.tools.noServers
			}),
			servers.map((server) => /* @__PURE__ */ a("section", {
				class: "panel",
				children: [
					/* @__PURE__ */ a("h3", { children: server.server }),
					/* @__PURE__ */ a("p", { children: server.tools.join(", ") || words.tools.none }),
					server.waiting.length > 0 && /* @__PURE__ */ a(ConfirmTools, {
						server,
						reload: tools.reload
					})
				]
			}, server.server)),
			/* @__PURE__ */ a("h3", { children: words.tools.plugins }),
			/* @__PURE__ */ a(Table, {
				label: words.tools.plugins,
				rows: plugins,
				getKey: (it) => it.name,
				empty: words.tools.noPlugins,
				columns: [
					{
						title: words.tools.tool,
						show: (it) => it.name
					},
					{
						title: words.tools.package,
						show: (it) => it.package
					},
					{
						title: words.pages.agents,
						show: (it) => it.agents.join(", ")
					}
				]
			})
		] })
	})] });
}
export { ToolsPage as default };
