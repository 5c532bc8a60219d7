// The state of the gateway: what waits, what fails, and the remedies.

import { call } from "../api/client";
import type { StatusResponse } from "../api/generated";
import { buildLink } from "../router";
import { Action } from "../ui/action";
import { Facts } from "../ui/facts";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatFull, formatNumber, formatShort } from "../ui/time";
import { words } from "../words";

type Problem = { key?: string; file?: string; line?: number; message?: string; remedy?: string };

export default function HealthPage() {
  const status = useResource((signal) => call("GET /api/status", {}, undefined, signal), [], (entry) => entry.kind === "ended");
  return (
    <>
      <h2>{words.pages.health}</h2>
      <Loaded resource={status}>{(found) => <Status status={found} reload={status.reload} />}</Loaded>
      <Action label={words.refresh} act={async () => status.reload()} />
    </>
  );
}

function Status({ status, reload }: { status: StatusResponse; reload: () => void }) {
  const problems = [...status.refused, ...status.problems, ...status.risks] as Problem[];
  const isFine = !problems.length && !status.waiting.length && !status.given_up.length && !status.store && !status.dead_letters && !status.in_doubt;
  return (
    <>
      {status.store && <p class="problem">{status.store}</p>}
      {isFine && <p class="good">{words.health.fine}</p>}
      <Facts
        rows={[
          [words.hosts.version, status.version],
          [words.hosts.host, status.host],
          [words.health.store, status.store_kind],
          [words.health.since, formatFull(status.since)],
          [words.health.draining, status.draining && words.hosts.draining],
          [words.health.pending, formatNumber(status.pending)],
          [words.health.held, status.held > 0 && formatNumber(status.held)],
          [words.pages.deadLetters, status.dead_letters > 0 && <a href={buildLink("deadLetters")}>{status.dead_letters}</a>],
          [words.deadLetters.doubtful, status.in_doubt > 0 && <a href={buildLink("deadLetters")}>{status.in_doubt}</a>],
          [words.health.restart, status.restart.join(", ")],
        ]}
      />
      {problems.length > 0 && <Problems rows={problems} />}
      <h3>{words.health.waiting}</h3>
      <Table
        label={words.health.waiting}
        rows={status.waiting}
        getKey={(it) => it.consumer}
        empty={words.health.nothingWaits}
        columns={[
          { title: words.delivery.consumer, show: (it) => it.consumer },
          { title: words.pages.sessions, show: (it) => formatNumber(it.sessions), isNumber: true },
          { title: words.memories.since, show: (it) => (it.since ? formatShort(it.since) : "") },
          { title: words.health.failures, show: (it) => it.attempts || "", isNumber: true },
          { title: words.delivery.reason, show: (it) => it.error },
        ]}
      />
      {status.waiting.some((it) => it.error) && <Action label={words.conversation.tryNow} act={async () => words.health.retried((await call("POST /api/retry")).retried)} onDone={reload} />}
      {status.given_up.map((it) => (
        <p class="bad">
          {words.health.givenUp(it.starts)} <a href={buildLink("session", [it.session])}>{words.inbox.open}</a>
        </p>
      ))}
    </>
  );
}

export function Problems({ rows }: { rows: Problem[] }) {
  return (
    <ul class="traces">
      {rows.map((it) => (
        <li>
          <p>
            {it.key && <code>{it.key}</code>} {it.message}
          </p>
          <p class="hint">
            {[it.remedy, it.line ? words.configuration.line(it.line) : ""].filter(Boolean).join(" · ")}
          </p>
        </li>
      ))}
    </ul>
  );
}
