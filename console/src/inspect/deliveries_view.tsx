// One entry, and where it was delivered: to platforms and memories.

import { call } from "../api/client";
import { state } from "../state/console_state";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatFull } from "../ui/time";
import { words } from "../words";

export function DeliveriesView({ id, seq }: { id: string; seq: number }) {
  const entry = useResource((signal) => call("GET /api/sessions/{id}/entries", { id, after: seq - 1, limit: 1 }, undefined, signal), [id, seq]);
  return (
    <section aria-label={words.delivery.entry(seq)}>
      <h3>{words.delivery.entry(seq)}</h3>
      <Loaded resource={entry}>{({ entries }) => <pre class="block">{JSON.stringify(entries[0] ?? null, null, 2)}</pre>}</Loaded>
      {state.caller.value?.operator && <Deliveries id={id} seq={seq} />}
    </section>
  );
}

function Deliveries({ id, seq }: { id: string; seq: number }) {
  const found = useResource((signal) => call("GET /api/sessions/{id}/entries/{seq}/deliveries", { id, seq }, undefined, signal), [id, seq]);
  return (
    <>
      <h3>{words.delivery.title}</h3>
      <Loaded resource={found}>
        {({ deliveries }) => (
          <Table
            label={words.delivery.title}
            rows={deliveries}
            getKey={(it) => `${it.consumer} ${it.remote} ${it.at}`}
            empty={words.delivery.none}
            columns={[
              { title: words.delivery.consumer, show: (it) => it.consumer },
              { title: words.delivery.state, show: (it) => words.delivery.states[it.state] },
              { title: words.delivery.remote, show: (it) => it.remote },
              { title: words.delivery.at, show: (it) => (it.at ? formatFull(it.at) : "") },
              { title: words.delivery.reason, show: (it) => it.error || it.reason },
            ]}
          />
        )}
      </Loaded>
    </>
  );
}
