// The use of models and its cost, by day, agent, model or person.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { UsageRowView } from "../api/generated";
import { Choice, Field } from "../ui/field";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatMoney, formatNumber } from "../ui/time";
import { words } from "../words";

const KEYS = ["day", "agent", "model", "person"] as const;
type Key = (typeof KEYS)[number];

export default function UsagePage() {
  const [by, choose] = useState<Key>("day");
  const [since, begin] = useState("");
  const [until, end] = useState("");
  const usage = useResource((signal) => call("GET /api/usage", { by, since, until }, undefined, signal), [by, since, until], (entry) => entry.kind === "ended");
  return (
    <>
      <h2>{words.pages.usage}</h2>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        <Choice label={words.usage.by} value={by} options={KEYS.map((it) => [it, words.usage.keys[it]])} onChange={(it) => choose(it as Key)} />
        <Field label={words.usage.since} value={since} onInput={begin} type="date" />
        <Field label={words.usage.until} value={until} onInput={end} type="date" />
      </form>
      <Loaded resource={usage}>{({ rows }) => <Rows rows={rows} by={by} />}</Loaded>
    </>
  );
}

function Rows({ rows, by }: { rows: UsageRowView[]; by: Key }) {
  const most = Math.max(1, ...rows.map((it) => it.input + it.output));
  const total = rows.reduce((sum, it) => ({ calls: sum.calls + it.calls, input: sum.input + it.input, output: sum.output + it.output, usd: sum.usd + it.usd }), { calls: 0, input: 0, output: 0, usd: 0 });
  return (
    <>
      <p>{words.usage.total(formatNumber(total.calls), formatNumber(total.input), formatNumber(total.output), formatMoney(total.usd))}</p>
      <Table
        label={words.pages.usage}
        rows={rows}
        getKey={(it) => it.key}
        empty={words.usage.none}
        columns={[
          { title: words.usage.keys[by], show: (it) => it.key || words.usage.unknown },
          {
            title: words.usage.share,
            show: (it) => (
              <span class="bar wide" aria-hidden="true">
                <i class="worked" style={{ width: `${((it.input + it.output) / most) * 100}%` }} />
              </span>
            ),
          },
          { title: words.usage.calls, show: (it) => formatNumber(it.calls), isNumber: true },
          { title: words.usage.input, show: (it) => formatNumber(it.input), isNumber: true },
          { title: words.usage.cached, show: (it) => formatNumber(it.cached), isNumber: true },
          { title: words.usage.output, show: (it) => formatNumber(it.output), isNumber: true },
          { title: words.usage.cost, show: (it) => formatMoney(it.usd), isNumber: true },
        ]}
      />
    </>
  );
}
