// A row for each operation of a session, the newest first. Its bar shows how long it waited and worked.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { TimelineRowView } from "../api/generated";
import { buildLink } from "../router";
import { Action } from "../ui/action";
import { Choice } from "../ui/field";
import { usePages } from "../ui/pages";
import { Problem } from "../ui/problem";
import { formatExactTime, formatFull, formatMoney, formatNumber, formatSeconds } from "../ui/time";
import { words } from "../words";
import { CompressionDiff } from "./compression_diff";

const PAGE_SIZE = 50;
const FILTERS = ["all", "failed", "tools", "memory", "compressions"] as const;
type Filter = (typeof FILTERS)[number];

export function TimelineView({ id }: { id: string }) {
  const [filter, setFilter] = useState<Filter>("all");
  const list = usePages(
    async (before: number | undefined, signal) => {
      const found = await call("GET /api/sessions/{id}/timeline", { id, limit: PAGE_SIZE, before }, undefined, signal);
      return { items: found.operations, next: found.next };
    },
    [id],
    (entry) => entry.session === id && ["began", "ended", "changed"].includes(entry.kind),
  );
  const shown = list.items.filter((row) => matches(row, filter));
  const longest = Math.max(1, ...shown.map((row) => measure(row).waited + measure(row).worked));
  return (
    <section aria-label={words.inspect.timeline}>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <Choice label={words.timeline.show} value={filter} options={FILTERS.map((it) => [it, words.timeline.filters[it]])} onChange={(it) => setFilter(it as Filter)} />
      </form>
      <Problem error={list.error} />
      {!list.loading && !shown.length && <p class="hint">{words.timeline.empty}</p>}
      <ol class="timeline">
        {shown.map((row) => (
          <Operation key={row.op} id={id} row={row} longest={longest} latest={findLatest(list.items, row)} reload={list.reload} />
        ))}
      </ol>
      {!list.isComplete && (
        <button class="plain-button" disabled={list.loading} onClick={list.loadMore}>
          {list.loading ? words.loading : words.earlier}
        </button>
      )}
    </section>
  );
}

function matches(row: TimelineRowView, filter: Filter): boolean {
  if (filter === "failed") return ["failed", "interrupted", "refused"].includes(row.state);
  if (filter === "tools") return row.calls.length > 0;
  if (filter === "memory") return row.notes > 0;
  return filter === "all" || row.type === "compression";
}

function measure(row: TimelineRowView): { waited: number; worked: number } {
  return {
    waited: row.asked_at === null ? 0 : Math.max(0, row.began_at - row.asked_at),
    worked: Math.max(0, (row.ended_at ?? row.began_at) - row.began_at),
  };
}

// Whether this is the latest operation of its type that is in force, so that an undo undoes it.
function findLatest(rows: TimelineRowView[], row: TimelineRowView): boolean {
  return rows.find((it) => it.type === row.type && it.state === "done" && !it.undone_at)?.op === row.op;
}

function Operation({ id, row, longest, latest, reload }: { id: string; row: TimelineRowView; longest: number; latest: boolean; reload: () => void }) {
  const { waited, worked } = measure(row);
  const width = (seconds: number) => ({ width: `${Math.max(seconds ? 1 : 0, (seconds / longest) * 100)}%` });
  return (
    <li class={`operation ${row.type} ${row.state}${row.undone_at ? " undone" : ""}`}>
      <details>
        <summary>
          <time datetime={new Date(row.began_at * 1000).toISOString()} title={formatFull(row.began_at)}>
            {formatExactTime(row.began_at)}
          </time>
          <span class="type">{words.timeline.types[row.type] ?? row.type}</span>
          <span class="outcome">{row.undone_at ? words.log.undone : (words.timeline.outcomes[row.state] ?? row.state)}</span>
          <span class="bar" aria-hidden="true">
            <i class="waited" style={width(waited)} />
            <i class="worked" style={width(worked)} />
          </span>
          <span class="hint">{summarize(row, worked)}</span>
        </summary>
        <Details id={id} row={row} waited={waited} worked={worked} />
        {row.type === "compression" && row.state === "done" && <CompressionDiff id={id} op={row.op} />}
        {latest && <Undo id={id} row={row} reload={reload} />}
      </details>
    </li>
  );
}

function summarize(row: TimelineRowView, worked: number): string {
  const parts = [formatSeconds(worked)];
  if (row.type === "compression" && row.tokens_after) parts.push(words.timeline.shrunk(formatNumber(row.tokens_before), formatNumber(row.tokens_after)));
  if (row.calls.length) parts.push(row.calls.map((it) => it.tool).join(", "));
  if (row.attempts > 1) parts.push(words.timeline.attempts(row.attempts));
  return parts.join(" · ");
}

function Details({ id, row, waited, worked }: { id: string; row: TimelineRowView; waited: number; worked: number }) {
  const used = row.usage;
  return (
    <ul class="details-list">
      <li>
        {words.timeline.operation(row.op, row.first, row.last)}
        {row.model && ` · ${row.model}`}
        {row.trigger && ` · ${words.timeline.trigger(row.trigger)}`}
      </li>
      <li>{words.timeline.times(formatSeconds(waited), formatSeconds(worked))}</li>
      {row.reason && <li class="bad">{row.reason}</li>}
      {(used.input ?? 0) > 0 && (
        <li>
          {words.timeline.used(formatNumber(used.input ?? 0), formatNumber(used.cached ?? 0), formatNumber(used.output ?? 0))}
          {(used.usd ?? 0) > 0 && ` · ${formatMoney(used.usd ?? 0)}`}
        </li>
      )}
      {row.thoughts.map((seq, index) => (
        <li>
          {words.timeline.thought(seq)}: <a href={buildLink("inspect", [id, "context"], { at: String(seq) })}>{words.inspect.context}</a> ·{" "}
          <a href={buildLink("inspect", [id, "why"], { at: String(seq) })}>{words.inspect.why}</a>
          {index > 0 && (
            <>
              {" · "}
              <a href={buildLink("inspect", [id, "context"], { at: String(row.thoughts[index - 1]), b: String(seq) })}>{words.timeline.differsFrom(row.thoughts[index - 1]!)}</a>
            </>
          )}
        </li>
      ))}
      {row.calls.map((it) => (
        <li class={it.state === "failed" || it.state === "unknown" ? "bad" : undefined}>
          {it.tool}: {words.tool[it.state]}
          {it.ended_at !== null && ` · ${formatSeconds(it.ended_at - it.began_at)}`}
        </li>
      ))}
    </ul>
  );
}

function Undo({ id, row, reload }: { id: string; row: TimelineRowView; reload: () => void }) {
  const what = row.type === "compression" ? "compress" : "turn";
  if (row.type !== "compression" && row.type !== "turn") return null;
  return (
    <Action
      label={words.timeline.undo}
      confirm={what === "turn" ? words.timeline.undoTurn : undefined}
      act={async () => (await call("POST /api/sessions/{id}/undo", { id }, { what })).message}
      onDone={reload}
    />
  );
}
