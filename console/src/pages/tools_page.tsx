// Tool servers with their tools, those that wait for a confirmation, and tools of installed packages.

import { call } from "../api/client";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { words } from "../words";
import { ConfirmTools } from "./inbox_page";

export default function ToolsPage() {
  const tools = useResource((signal) => call("GET /api/tools", {}, undefined, signal), []);
  return (
    <>
      <h2>{words.pages.tools}</h2>
      <Loaded resource={tools}>
        {({ servers, plugins }) => (
          <>
            {!servers.length && <p class="hint">{words.tools.noServers}</p>}
            {servers.map((server) => (
              <section class="panel" key={server.server}>
                <h3>{server.server}</h3>
                <p>{server.tools.join(", ") || words.tools.none}</p>
                {server.waiting.length > 0 && <ConfirmTools server={server} reload={tools.reload} />}
              </section>
            ))}
            <h3>{words.tools.plugins}</h3>
            <Table
              label={words.tools.plugins}
              rows={plugins}
              getKey={(it) => it.name}
              empty={words.tools.noPlugins}
              columns={[
                { title: words.tools.tool, show: (it) => it.name },
                { title: words.tools.package, show: (it) => it.package },
                { title: words.pages.agents, show: (it) => it.agents.join(", ") },
              ]}
            />
          </>
        )}
      </Loaded>
    </>
  );
}
