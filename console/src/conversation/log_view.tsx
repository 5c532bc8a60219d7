// Shows the log of the open session, entry by entry.

import { useRef } from "preact/hooks";
import type { EntryView } from "../api/generated";
import { buildLink } from "../router";
import { state } from "../state/console_state";
import { formatExactTime, formatFull } from "../ui/time";
import { memo } from "../ui/memo";
import { words } from "../words";
import { useFollow } from "./follow";
import { describeHeard } from "./rows";

const MAX_ENTRIES = 400;

export function LogView() {
  const log = state.getOpenLog();
  const entries = log.entries.slice(-MAX_ENTRIES);
  const end = useRef<HTMLDivElement>(null);
  const follow = useFollow(end, [entries.length, state.openId.value]);
  return (
    <aside class="log" aria-label={words.log.name}>
      <h2>
        {words.log.name} <span class="count">{log.entries.at(-1)?.seq ?? 0}</span>
      </h2>
      <div class="scroll" ref={follow} tabIndex={0}>
        {!entries.length && <p class="hint">{words.log.hint}</p>}
        <ol>
          {entries.map((entry) => (
            <Line key={entry.seq} entry={entry} />
          ))}
        </ol>
        <div ref={end} />
      </div>
    </aside>
  );
}

const Line = memo(({ entry }: { entry: EntryView }) => (
  <li class={`kind-${entry.kind}`}>
    <details>
      <summary>
        <span class="seq">{entry.seq}</span>
        <span class="kind">{entry.kind}</span>
        <span class="gist">{summarizeEntry(entry)}</span>
        <time datetime={new Date(entry.at * 1000).toISOString()} title={formatFull(entry.at)}>
          {formatExactTime(entry.at)}
        </time>
      </summary>
      <pre tabIndex={0}>{JSON.stringify(entry, null, 2)}</pre>
      <a class="quiet" href={buildLink("inspect", [state.openId.peek() ?? "", "entry"], { at: String(entry.seq) })}>
        {words.log.details}
      </a>
    </details>
  </li>
));

function summarizeEntry({ kind, body: given, op }: EntryView): string {
  if (given === null) return words.log.erased;
  const body = given as Record<string, any>;
  switch (kind) {
    case "heard":
      return describeHeard(body);
    case "said":
    case "notified":
      return body.text;
    case "noted":
      return body.action === "remove" ? words.log.removes(body.text) : body.text;
    case "began":
      return `${body.type} · ${words.log.takes(body.takes ?? [])}`;
    case "took":
      return words.log.takes(body.takes ?? []);
    case "thought":
      return body.calls?.length ? words.log.calls(body.calls.map((call: { tool: string }) => call.tool)) : body.text;
    case "called":
      return `${body.tool} · ${body.effect}`;
    case "returned":
      return body.text ?? "";
    case "ended":
      return `${body.outcome ?? "done"}${body.usage?.input ? ` · ${words.log.usage(body.usage.input, body.usage.output ?? 0)}` : ""}`;
    case "compressed":
      return words.log.covers(body.covers);
    case "changed":
      return body.change?.type ?? "";
    default:
      return op ? words.log.operation(op) : "";
  }
}
