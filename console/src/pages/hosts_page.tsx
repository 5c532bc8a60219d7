// The hosts of a store: which are alive, and what each works on.

import { call } from "../api/client";
import { Action } from "../ui/action";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatSeconds } from "../ui/time";
import { words } from "../words";

export default function HostsPage() {
  const hosts = useResource((signal) => call("GET /api/hosts", {}, undefined, signal), []);
  return (
    <>
      <h2>{words.pages.hosts}</h2>
      <Loaded resource={hosts}>
        {(found) => (
          <>
            {!found.shared && <p class="hint">{words.hosts.single}</p>}
            {found.shared && <p class="hint">{words.hosts.clock(formatSeconds(Math.abs(found.clock_difference_seconds)))}</p>}
            <Table
              label={words.pages.hosts}
              rows={found.hosts}
              getKey={(it) => it.id}
              empty={words.hosts.none}
              columns={[
                { title: words.hosts.host, show: (it) => `${it.name}${it.own ? ` (${words.hosts.own})` : ""}` },
                { title: words.delivery.state, show: (it) => <span class={it.alive ? "good" : "bad"}>{it.draining ? words.hosts.draining : it.alive ? words.hosts.alive : words.hosts.gone}</span> },
                { title: words.hosts.version, show: (it) => it.version },
                { title: words.hosts.since, show: (it) => formatSeconds(it.started_seconds) },
                { title: words.hosts.renewed, show: (it) => formatSeconds(it.renewed_seconds) },
                { title: words.hosts.accounts, show: (it) => it.accounts.join(", ") },
                { title: words.hosts.cursors, show: (it) => Object.entries(it.cursors).map(([name, number]) => `${name} ${number}`).join(", ") },
                { title: words.hosts.differ, show: (it) => it.settings_differ.join(", ") },
              ]}
            />
          </>
        )}
      </Loaded>
      <Action label={words.refresh} act={async () => hosts.reload()} />
      <Action label={words.hosts.drain} danger confirm={words.hosts.confirmDrain} act={async () => void (await call("POST /api/drain"))} onDone={hosts.reload} />
    </>
  );
}
