// The schedules: when each runs next, and what it says.

import { call } from "../api/client";
import { Action } from "../ui/action";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatFull } from "../ui/time";
import { words } from "../words";

export default function SchedulesPage() {
  const schedules = useResource((signal) => call("GET /api/schedules", {}, undefined, signal), [], (entry) => ["ended", "heard"].includes(entry.kind));
  return (
    <>
      <h2>{words.pages.schedules}</h2>
      <p class="hint">{words.schedules.about}</p>
      <Loaded resource={schedules}>
        {({ schedules: rows }) => (
          <Table
            label={words.pages.schedules}
            rows={rows}
            getKey={(it) => it.id}
            empty={words.schedules.none}
            columns={[
              { title: words.schedules.when, show: (it) => it.when },
              { title: words.schedules.text, show: (it) => it.text },
              { title: words.agent, show: (it) => it.agent },
              { title: words.schedules.chat, show: (it) => `${it.platform} ${it.chat}` },
              { title: words.schedules.next, show: (it) => (it.paused ? words.schedules.paused : it.next_local || words.schedules.never) },
              { title: words.schedules.last, show: (it) => (it.last ? formatFull(it.last) : "") },
              {
                title: words.actions,
                show: (it) => (
                  <Action
                    label={words.schedules.remove}
                    confirm={words.schedules.confirmRemove}
                    act={async () => void (await call("POST /api/schedules/{id}/delete", { id: it.id }))}
                    onDone={schedules.reload}
                  />
                ),
              },
            ]}
          />
        )}
      </Loaded>
    </>
  );
}
