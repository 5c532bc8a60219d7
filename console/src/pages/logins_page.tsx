// The logins of browsers.

import { call } from "../api/client";
import { Action } from "../ui/action";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatFull } from "../ui/time";
import { words } from "../words";

export default function LoginsPage() {
  const logins = useResource((signal) => call("GET /api/logins", {}, undefined, signal), []);
  return (
    <>
      <h2>{words.pages.logins}</h2>
      <Loaded resource={logins}>
        {({ logins: rows }) => (
          <Table
            label={words.pages.logins}
            rows={rows}
            getKey={(it) => it.id}
            empty={words.logins.none}
            columns={[
              { title: words.logins.browser, show: (it) => `${it.browser}${it.current ? ` (${words.logins.current})` : ""}` },
              { title: words.logins.token, show: (it) => it.token },
              { title: words.logins.created, show: (it) => formatFull(it.created_at) },
              { title: words.logins.used, show: (it) => formatFull(it.used_at) },
              {
                title: words.actions,
                show: (it) => (
                  <Action
                    label={words.logins.end}
                    confirm={it.current ? words.logins.endsThis : undefined}
                    act={async () => void (await call("POST /api/logins/{id}/end", { id: it.id }))}
                    onDone={logins.reload}
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
