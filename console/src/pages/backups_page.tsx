// The backups, and making one.

import { call } from "../api/client";
import { Action } from "../ui/action";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatBytes, formatFull, formatNumber } from "../ui/time";
import { words } from "../words";

export default function BackupsPage() {
  const backups = useResource((signal) => call("GET /api/backups", {}, undefined, signal), []);
  const make = async () => {
    const made = await call("POST /api/backups", {}, {});
    return words.backups.made(made.path, formatBytes(made.bytes), made.sound);
  };
  return (
    <>
      <h2>{words.pages.backups}</h2>
      <Action label={words.backups.make} act={make} onDone={backups.reload} />
      <Loaded resource={backups}>
        {({ backups: rows }) => (
          <Table
            label={words.pages.backups}
            rows={rows}
            getKey={(it) => it.path}
            empty={words.backups.none}
            columns={[
              { title: words.delivery.at, show: (it) => formatFull(it.at) },
              { title: words.backups.path, show: (it) => <code>{it.path}</code> },
              { title: words.backups.size, show: (it) => formatBytes(it.bytes), isNumber: true },
              { title: words.backups.upto, show: (it) => formatNumber(it.pos), isNumber: true },
              { title: words.delivery.state, show: (it) => <span class={it.sound ? "good" : "bad"}>{it.sound ? words.backups.sound : words.backups.damaged}</span> },
            ]}
          />
        )}
      </Loaded>
    </>
  );
}
