// Why an answer was given: what was recalled for it, from where, what was left out, and which memories were silent.

import { call } from "../api/client";
import type { ExplanationView, TraceView } from "../api/generated";
import { buildLink } from "../router";
import { state } from "../state/console_state";
import { Facts } from "../ui/facts";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { formatFull, formatNumber, formatSeconds } from "../ui/time";
import { words } from "../words";

export function WhyView({ id, at }: { id: string; at: number | undefined }) {
  const why = useResource((signal) => call("GET /api/sessions/{id}/why", { id, at }, undefined, signal), [id, at]);
  return (
    <section aria-label={words.inspect.why}>
      <Loaded resource={why}>{(found) => <Explanation found={found} />}</Loaded>
    </section>
  );
}

function Explanation({ found }: { found: ExplanationView }) {
  const groups: Array<[string, TraceView[]]> = [
    [words.why.facts, found.facts ?? []],
    [words.why.shown, found.shown ?? []],
    [words.why.leftOut, found.left_out ?? []],
    [words.why.shadow, found.shadow ?? []],
  ];
  return (
    <>
      <Facts
        rows={[
          [words.why.answer, words.timeline.thought(found.at)],
          [words.why.audience, found.audience.map((it) => it.replace(/^person:/, "")).join(", ")],
          [words.why.budget, words.why.spent(formatNumber(found.tokens ?? 0), formatNumber(found.budget ?? 0))],
          [words.why.memories, describeAnswers(found)],
          [words.why.silent, found.unavailable?.join(", ")],
        ]}
      />
      <p>
        <a href={buildLink("inspect", [found.session, "context"], { at: String(found.at) })}>{words.why.toContext}</a>
      </p>
      {groups.every(([, items]) => !items.length) && <p class="hint">{words.why.nothing}</p>}
      {groups.map(([title, items]) => items.length > 0 && <Traces key={title} title={title} items={items} />)}
    </>
  );
}

function describeAnswers(found: ExplanationView): string {
  return Object.entries((found.answers ?? {}) as Record<string, { seconds?: number }>)
    .map(([name, it]) => (it.seconds === undefined ? name : `${name} (${formatSeconds(it.seconds)})`))
    .join(", ");
}

function Traces({ title, items }: { title: string; items: TraceView[] }) {
  return (
    <>
      <h3>
        {title} <span class="count">{items.length}</span>
      </h3>
      <ul class="traces">
        {items.map((it) => (
          <li>
            <p class="plain">{it.text || words.log.erased}</p>
            <p class="hint">
              {[it.provider, it.person?.replace(/^person:/, ""), it.at ? formatFull(it.at) : "", it.origin].filter(Boolean).join(" · ")}
              {it.session && it.seq ? <Source session={it.session} seq={it.seq} /> : null}
            </p>
            {it.why_not && <p class="bad">{it.why_not}</p>}
          </li>
        ))}
      </ul>
    </>
  );
}

function Source({ session, seq }: { session: string; seq: number }) {
  const label = words.context.entries(seq, seq);
  if (!state.caller.value?.operator) return <> · {label}</>;
  return (
    <>
      {" · "}
      <a href={buildLink("inspect", [session, "entry"], { at: String(seq) })}>{label}</a>
    </>
  );
}
