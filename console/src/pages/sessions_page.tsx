// All sessions: searched and filtered by the server, read page by page, and drawn as far as they are visible.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { ActiveSessionsResponse, ActiveSessionView } from "../api/generated";
import { nameSession } from "../conversation/session_list";
import { buildLink, place, replacePlace } from "../router";
import { parseAddress } from "../state/address";
import { state } from "../state/console_state";
import { Choice, Field } from "../ui/field";
import { usePages } from "../ui/pages";
import { Problem } from "../ui/problem";
import { formatFull, formatMoney, formatNumber, formatShort } from "../ui/time";
import { VirtualList } from "../ui/virtual_list";
import { words } from "../words";

const PAGE_SIZE = 100;
const ROW_HEIGHT = 52;
const STATES = ["current", "archived", "failed", "all"] as const;
const TYPING_MS = 300;

type Filter = { q: string; agent: string; platform: string; person: string; state: (typeof STATES)[number] };

export default function SessionsPage() {
  const [filter, setFilter] = useState<Filter>(readFilter);
  const list = usePages(
    async (before: string | undefined, signal) => {
      const found = (await call("GET /api/sessions", { order: "active", limit: PAGE_SIZE, before, ...filter }, undefined, signal)) as ActiveSessionsResponse;
      return { items: found.sessions, next: found.next };
    },
    [filter],
    (entry) => entry.kind === "heard" || entry.kind === "changed",
  );
  const change = (changes: Partial<Filter>) => {
    const next = { ...filter, ...changes };
    setFilter(next);
    replacePlace(buildLink("sessions", [], { ...next, state: next.state === "current" ? "" : next.state }));
  };
  return (
    <div class="fill">
      <h2>{words.pages.sessions}</h2>
      <Filters filter={filter} change={change} />
      <Problem error={list.error} />
      <p class="hint" role="status">
        {list.loading ? words.loading : words.sessions.shown(list.items.length, list.isComplete)}
      </p>
      <VirtualList label={words.pages.sessions} items={list.items} rowHeight={ROW_HEIGHT} getKey={(it) => it.id} onNearEnd={list.loadMore}>
        {(session) => <SessionRow session={session} />}
      </VirtualList>
    </div>
  );
}

function readFilter(): Filter {
  const { query } = place.value;
  const wanted = STATES.find((it) => it === query.get("state")) ?? "current";
  const get = (name: string) => query.get(name) ?? "";
  return { q: get("q"), agent: get("agent"), platform: get("platform"), person: get("person"), state: wanted };
}

function Filters({ filter, change }: { filter: Filter; change: (changes: Partial<Filter>) => void }) {
  const agents: Array<[string, string]> = [["", words.sessions.anyAgent], ...state.agents.value.map((it) => [it, it] as [string, string])];
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      <Typed label={words.sessions.search} value={filter.q} onSettled={(q) => change({ q })} />
      <Choice label={words.agent} value={filter.agent} options={agents} onChange={(agent) => change({ agent })} />
      <Typed label={words.sessions.platform} value={filter.platform} onSettled={(platform) => change({ platform })} />
      {state.caller.value?.operator && <Typed label={words.sessions.person} value={filter.person} onSettled={(person) => change({ person })} />}
      <Choice
        label={words.sessions.state}
        value={filter.state}
        options={STATES.map((it) => [it, words.sessions.states[it]])}
        onChange={(it) => change({ state: it as Filter["state"] })}
      />
    </form>
  );
}

// A field whose value is used when its user pauses.
function Typed({ label, value, onSettled }: { label: string; value: string; onSettled: (value: string) => void }) {
  const [text, write] = useState(value);
  const [timer, setTimer] = useState(0);
  const input = (next: string) => {
    write(next);
    clearTimeout(timer);
    setTimer(setTimeout(() => onSettled(next.trim()), TYPING_MS) as unknown as number);
  };
  return <Field label={label} value={text} onInput={input} type="search" />;
}

function SessionRow({ session }: { session: ActiveSessionView }) {
  const { platform } = parseAddress(session.address);
  const about = [session.agent, platform, session.person, words.sessions.turns(session.turns)].filter(Boolean).join(" · ");
  return (
    <div class="session-row">
      <a class="title" href={buildLink("session", [session.id])}>
        {nameSession(session)}
      </a>
      <span class="hint about">{about}</span>
      <span class="hint cost">
        {words.tokens(formatNumber(session.tokens))}
        {session.usd > 0 && ` · ${formatMoney(session.usd)}`}
      </span>
      {session.outcome === "failed" && <span class="bad">{words.sessions.failed}</span>}
      {session.archived && <span class="hint">{words.sessions.archived}</span>}
      <time class="hint" datetime={new Date(session.at * 1000).toISOString()} title={formatFull(session.at)}>
        {formatShort(session.at)}
      </time>
      <a class="details" href={buildLink("inspect", [session.id])}>
        {words.sessions.details}
      </a>
    </div>
  );
}
