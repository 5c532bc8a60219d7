// Deliveries that were given up or whose outcome is unknown, by cause, to send again or to drop.

import { call } from "../api/client";
import type { DeadLetterCauseView, DeadLetterView } from "../api/generated";
import { buildLink, place } from "../router";
import { Action } from "../ui/action";
import { Loaded } from "../ui/loaded";
import { usePages } from "../ui/pages";
import { Problem } from "../ui/problem";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatFull } from "../ui/time";
import { words } from "../words";

type Filter = { consumer?: string; cause?: string };

export default function DeadLettersPage() {
  const { query } = place.value;
  const filter: Filter = { consumer: query.get("consumer") ?? "", cause: query.get("cause") ?? "" };
  const causes = useResource((signal) => call("GET /api/dead-letters/causes", {}, undefined, signal), []);
  return (
    <>
      <h2>{words.pages.deadLetters}</h2>
      <p class="hint">{words.deadLetters.about}</p>
      <Loaded resource={causes}>{({ causes: rows }) => <Causes rows={rows} reload={causes.reload} />}</Loaded>
      {(filter.consumer || filter.cause) && <Letters filter={filter} />}
    </>
  );
}

function Causes({ rows, reload }: { rows: DeadLetterCauseView[]; reload: () => void }) {
  return (
    <Table
      label={words.deadLetters.causes}
      rows={rows}
      getKey={(it) => `${it.consumer} ${it.reason}`}
      empty={words.deadLetters.none}
      columns={[
        { title: words.delivery.consumer, show: (it) => it.consumer },
        { title: words.delivery.reason, show: (it) => <a href={buildLink("deadLetters", [], { consumer: it.consumer, cause: it.reason })}>{it.reason || words.deadLetters.noReason}</a> },
        { title: words.deadLetters.count, show: (it) => it.count, isNumber: true },
        { title: words.deadLetters.doubtful, show: (it) => it.in_doubt || "", isNumber: true },
        { title: words.deadLetters.latest, show: (it) => formatFull(it.last_at) },
        { title: words.actions, show: (it) => <Settle filter={{ consumer: it.consumer, cause: it.reason }} count={it.count} doubtful={it.in_doubt} reload={reload} /> },
      ]}
    />
  );
}

// Sends again or drops all that match. A doubtful delivery may have arrived, so sending it again may repeat it.
function Settle({ filter, count, doubtful, reload }: { filter: Filter & { ids?: number[] }; count: number; doubtful: number; reload: () => void }) {
  return (
    <div class="row">
      <Action
        label={words.deadLetters.resend}
        confirm={doubtful ? words.deadLetters.mayRepeat(doubtful) : undefined}
        act={async () => words.deadLetters.resent((await call("POST /api/dead-letters/replay", {}, filter)).replayed)}
        onDone={reload}
      />
      <Action
        label={words.deadLetters.drop}
        confirm={words.deadLetters.confirmDrop(count)}
        act={async () => words.deadLetters.dropped((await call("POST /api/dead-letters/drop", {}, filter)).dropped)}
        onDone={reload}
      />
    </div>
  );
}

function Letters({ filter }: { filter: Filter }) {
  const list = usePages(
    async (after: number | undefined, signal) => {
      const found = await call("GET /api/dead-letters", { ...filter, after, limit: 100 }, undefined, signal);
      return { items: found.dead_letters, next: found.next };
    },
    [filter.consumer, filter.cause],
  );
  return (
    <>
      <h3>{[filter.consumer, filter.cause].filter(Boolean).join(" · ")}</h3>
      <Problem error={list.error} />
      <Table label={words.deadLetters.list} rows={list.items} getKey={(it) => it.id} empty={list.loading ? words.loading : words.deadLetters.none} columns={buildColumns(list.reload)} />
      {!list.isComplete && (
        <button class="plain-button" disabled={list.loading} onClick={list.loadMore}>
          {words.more}
        </button>
      )}
    </>
  );
}

function buildColumns(reload: () => void) {
  return [
    { title: words.delivery.at, show: (it: DeadLetterView) => formatFull(it.at) },
    { title: words.pages.inspect, show: (it: DeadLetterView) => <a href={buildLink("inspect", [it.session, "entry"], { at: String(it.seq) })}>{words.delivery.entry(it.seq)}</a> },
    { title: words.delivery.state, show: (it: DeadLetterView) => (it.in_doubt ? words.delivery.states.in_doubt : words.delivery.states.dead) },
    { title: words.delivery.reason, show: (it: DeadLetterView) => it.reason },
    { title: words.actions, show: (it: DeadLetterView) => <Settle filter={{ ids: [it.id] }} count={1} doubtful={it.in_doubt ? 1 : 0} reload={reload} /> },
  ];
}
