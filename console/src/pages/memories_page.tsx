// The memories: what each agent's memory has received, what can be found in them, and how they compare.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { MemorySearchResponse, MemoryStatusRow } from "../api/generated";
import { buildLink } from "../router";
import { state } from "../state/console_state";
import { Action } from "../ui/action";
import { Choice, Field } from "../ui/field";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatFull, formatMoney, formatNumber, formatSeconds, formatShort } from "../ui/time";
import { words } from "../words";

export default function MemoriesPage() {
  const operator = state.caller.value?.operator;
  return (
    <>
      <h2>{words.pages.memories}</h2>
      {operator && <Status />}
      <Search />
      {operator && <Comparison />}
    </>
  );
}

function Status() {
  const status = useResource((signal) => call("GET /api/memory/status", {}, undefined, signal), [], (entry) => entry.kind === "ended");
  return (
    <Loaded resource={status}>
      {({ memories }) => (
        <Table
          label={words.memories.delivery}
          rows={memories}
          getKey={(it) => `${it.agent} ${it.memory}`}
          empty={words.memories.none}
          columns={[
            { title: words.agent, show: (it) => it.agent },
            { title: words.memories.memory, show: (it) => it.memory },
            { title: words.delivery.state, show: describeState },
            { title: words.memories.backlog, show: (it) => formatNumber(it.backlog), isNumber: true },
            { title: words.memories.since, show: (it) => (it.backlog_since ? formatShort(it.backlog_since) : "") },
            { title: words.memories.sent, show: (it) => (it.sent === null ? "" : formatNumber(it.sent)), isNumber: true },
            { title: words.pages.deadLetters, show: (it) => <DeadLetters row={it} />, isNumber: true },
            { title: words.actions, show: (it) => <Resend row={it} /> },
          ]}
        />
      )}
    </Loaded>
  );
}

function describeState(row: MemoryStatusRow) {
  if (row.error || !row.available)
    return (
      <span class="bad">
        {row.error || words.memories.unavailable} {row.remedy && <span class="hint">{row.remedy}</span>}
      </span>
    );
  return <span class="hint">{row.report || words.memories.available}</span>;
}

function DeadLetters({ row }: { row: MemoryStatusRow }) {
  const number = row.dead_letters + row.in_doubt;
  return number ? <a href={buildLink("deadLetters", [], { consumer: `memory:${row.memory}` })}>{number}</a> : null;
}

const DAY_SECONDS = 86_400;

// Sends a memory again what the last day brought, for a service that lost it.
function Resend({ row }: { row: MemoryStatusRow }) {
  const resend = (dry_run: boolean) => async () => {
    const since = Date.now() / 1000 - DAY_SECONDS;
    const done = await call("POST /api/memory/providers/{name}/resend", { name: row.memory }, { since, agent: row.agent, dry_run });
    return words.memories.resent(done.items, done.sessions);
  };
  return (
    <div class="row">
      <Action label={words.memories.planResend} act={resend(true)} />
      <Action label={words.memories.resend} act={resend(false)} confirm={words.memories.confirmResend} />
    </div>
  );
}

function Search() {
  const [query, write] = useState("");
  const [agent, choose] = useState("");
  const [person, name] = useState("");
  const [found, show] = useState<MemorySearchResponse | null>(null);
  const operator = state.caller.value?.operator;
  const agents = state.agents.value.map((it) => [it, it] as [string, string]);
  const look = async () => show(await call("GET /api/memory/search", { q: query.trim(), agent, person: operator ? person.trim() : "", limit: 30 }));
  return (
    <section aria-label={words.memories.search}>
      <h3>{words.memories.search}</h3>
      <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
        <Field label={words.memories.query} value={query} onInput={write} type="search" />
        <Choice label={words.agent} value={agent} options={[["", words.memories.defaultAgent], ...agents]} onChange={choose} />
        {operator && <Field label={words.sessions.person} value={person} onInput={name} />}
        <Action label={words.memories.find} act={look} />
      </form>
      {found && <Findings found={found} />}
    </section>
  );
}

function Findings({ found }: { found: MemorySearchResponse }) {
  return (
    <div role="status">
      {found.unavailable.length > 0 && <p class="bad">{words.memories.silent(found.unavailable.join(", "))}</p>}
      <h3>
        {words.memories.facts} <span class="count">{found.facts.length}</span>
      </h3>
      <ul class="traces">
        {found.facts.map((fact) => (
          <li class={fact.until || fact.replaced_by ? "undone" : undefined}>
            <p class="plain">{fact.text}</p>
            <p class="hint">
              {[fact.target, formatFull(fact.at), fact.until ? words.memories.validUntil(formatFull(fact.until)) : "", fact.replaced_by ? words.memories.replacedBy(fact.replaced_by) : ""]
                .filter(Boolean)
                .join(" · ")}
            </p>
          </li>
        ))}
      </ul>
      <h3>
        {words.memories.hits} <span class="count">{found.memories.length}</span>
      </h3>
      <ul class="traces">
        {found.memories.map((hit) => (
          <li>
            <p class="plain">{hit.text}</p>
            <p class="hint">{[hit.provider, hit.person?.replace(/^person:/, ""), hit.at ? formatFull(hit.at) : "", hit.origin].filter(Boolean).join(" · ")}</p>
          </li>
        ))}
      </ul>
      {!found.facts.length && !found.memories.length && <p class="hint">{words.memories.nothing}</p>}
    </div>
  );
}

function Comparison() {
  const [agent, choose] = useState("");
  const [open, setOpen] = useState(false);
  const agents = state.agents.value.map((it) => [it, it] as [string, string]);
  return (
    <section aria-label={words.memories.comparison}>
      <h3>{words.memories.comparison}</h3>
      <p class="hint">{words.memories.comparisonAbout}</p>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <Choice label={words.agent} value={agent} options={[["", words.memories.defaultAgent], ...agents]} onChange={choose} />
        <Action label={words.memories.compare} act={async () => setOpen(true)} />
      </form>
      {open && <Compared key={agent} agent={agent || (state.agents.value[0] ?? "")} />}
    </section>
  );
}

function Compared({ agent }: { agent: string }) {
  const compared = useResource((signal) => call("POST /api/memory/compare", {}, { agent }, signal), [agent]);
  return (
    <Loaded resource={compared}>
      {({ memories, overlaps }) => (
        <>
          <Table
            label={words.memories.comparison}
            rows={memories}
            getKey={(it) => it.memory}
            empty={words.memories.nothingAsked}
            columns={[
              { title: words.memories.memory, show: (it) => it.memory },
              { title: words.memories.mode, show: (it) => it.mode },
              { title: words.memories.asked, show: (it) => it.asked, isNumber: true },
              { title: words.memories.answered, show: (it) => it.answered, isNumber: true },
              { title: words.memories.found, show: (it) => it.found, isNumber: true },
              { title: words.memories.used, show: (it) => it.used, isNumber: true },
              { title: words.memories.alone, show: (it) => it.alone, isNumber: true },
              { title: words.memories.median, show: (it) => formatSeconds(it.seconds_p50), isNumber: true },
              { title: words.memories.slow, show: (it) => formatSeconds(it.seconds_p95), isNumber: true },
              { title: words.usage.cost, show: (it) => formatMoney(it.usd), isNumber: true },
            ]}
          />
          {overlaps.map((it) => (
            <p class="hint">{words.memories.overlap(it.first, it.second, Math.round(it.share * 100))}</p>
          ))}
        </>
      )}
    </Loaded>
  );
}
