// What the model was shown at one of its calls, part by part, and what became of the parts until a later call.

import { call } from "../api/client";
import type { ContextPartView, PartDifferenceView } from "../api/generated";
import { buildLink, go } from "../router";
import { Choice } from "../ui/field";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatNumber } from "../ui/time";
import { words } from "../words";
import { MessageList } from "./message_list";

const THOUGHTS = 100;

export function ContextView({ id, at }: { id: string; at: number | undefined }) {
  const context = useResource((signal) => call("GET /api/sessions/{id}/context", { id, at }, undefined, signal), [id, at], at ? null : (entry) => entry.session === id);
  return (
    <section aria-label={words.inspect.context}>
      <ThoughtChoice id={id} at={at} />
      <Loaded resource={context}>
        {(found) => {
          const parts = found.parts as unknown as ContextPartView[];
          return (
            <>
              <Exactness exact={found.exact} reason={found.reason} at={at} />
              <PartBar parts={parts} />
              <Parts parts={parts} request={found.request} />
            </>
          );
        }}
      </Loaded>
    </section>
  );
}

function Exactness({ exact, reason, at }: { exact: boolean | null; reason: string; at: number | undefined }) {
  if (!at) return <p class="hint">{words.context.next}</p>;
  if (exact) return <p class="good">{words.context.exact}</p>;
  return <p class={exact === false ? "bad" : "hint"}>{reason || words.context.notRecorded}</p>;
}

// Chooses a call of the model, and another to compare it with.
function ThoughtChoice({ id, at, b }: { id: string; at: number | undefined; b?: number }) {
  const timeline = useResource((signal) => call("GET /api/sessions/{id}/timeline", { id, limit: THOUGHTS }, undefined, signal), [id]);
  const thoughts = timeline.value?.operations.flatMap((row) => [...row.thoughts].reverse()) ?? [];
  const options = [...new Set([...(at ? [at] : []), ...(b ? [b] : []), ...thoughts])].sort((x, y) => y - x).map((seq) => [String(seq), words.timeline.thought(seq)] as [string, string]);
  const open = (query: Record<string, string>) => go(buildLink("inspect", [id, "context"], query));
  return (
    <form class="filters" onSubmit={(event) => event.preventDefault()}>
      <Choice label={words.context.at} value={String(at ?? "")} options={[["", words.context.nextTurn], ...options]} onChange={(seq) => open({ at: seq, b: b && seq ? String(b) : "" })} />
      {at && <Choice label={words.context.compareWith} value={String(b ?? "")} options={[["", words.context.nothing], ...options]} onChange={(seq) => open({ at: String(at), b: seq })} />}
    </form>
  );
}

function PartBar({ parts }: { parts: ContextPartView[] }) {
  const total = parts.reduce((sum, part) => sum + part.tokens, 0);
  return (
    <>
      <p class="hint">{words.tokens(formatNumber(total))}</p>
      <div class="token-bar" aria-hidden="true">
        {parts.map((part) => (
          <i class={`part-${part.kind}`} style={{ width: `${(part.tokens / Math.max(1, total)) * 100}%` }} title={words.context.parts[part.kind]} />
        ))}
      </div>
    </>
  );
}

function Parts({ parts, request }: { parts: ContextPartView[]; request: Record<string, any> }) {
  return (
    <ol class="context-parts">
      {parts.map((part, index) => (
        <li key={index}>
          <details open={part.kind === "exchange" && index === parts.length - 1}>
            <summary>
              <span class={`swatch part-${part.kind}`} aria-hidden="true" />
              <span>{describePart(part)}</span>
              <span class="hint">{words.tokens(formatNumber(part.tokens))}</span>
            </summary>
            <PartText part={part} request={request} />
          </details>
        </li>
      ))}
    </ol>
  );
}

function PartText({ part, request }: { part: ContextPartView; request: Record<string, any> }) {
  if (part.kind === "system") return <pre>{String(request.system ?? "")}</pre>;
  if (part.kind === "tools") return <pre>{JSON.stringify(request.tools ?? [], null, 2)}</pre>;
  return part.messages ? <MessageList messages={(request.messages ?? []).slice(...part.messages)} /> : null;
}

function describePart(part: ContextPartView): string {
  const name = words.context.parts[part.kind];
  if (part.kind === "compression") return `${name} · ${words.log.covers(part.covers)}`;
  const [first, last] = [part.seqs[0], part.seqs.at(-1)];
  return first === undefined ? name : `${name} · ${words.context.entries(first, last ?? first)}`;
}

export function ContextDiff({ id, a, b }: { id: string; a: number; b: number }) {
  const diff = useResource((signal) => call("GET /api/sessions/{id}/context/diff", { id, a, b }, undefined, signal), [id, a, b]);
  return (
    <section aria-label={words.inspect.context}>
      <ThoughtChoice id={id} at={a} b={b} />
      <Loaded resource={diff}>
        {(found) => (
          <>
            <p>{words.context.difference(formatNumber(found.tokens_before), formatNumber(found.tokens_after))}</p>
            <Table
              label={words.inspect.context}
              rows={found.parts.map((it, index) => ({ ...it, index }))}
              getKey={(it) => it.index}
              empty={words.context.nothing}
              columns={[
                { title: words.context.change, show: (it) => <span class={`change ${it.change}`}>{describeChange(it)}</span> },
                { title: words.context.part, show: (it) => describePart(it.part) },
                { title: words.context.before, show: (it) => formatNumber(it.tokens_before), isNumber: true },
                { title: words.context.after, show: (it) => formatNumber(it.tokens_after), isNumber: true },
              ]}
            />
          </>
        )}
      </Loaded>
    </section>
  );
}

function describeChange(it: PartDifferenceView): string {
  const name = words.context.changes[it.change];
  return it.change === "compressed" && it.by ? `${name} (${words.log.operation(it.by)})` : name;
}
