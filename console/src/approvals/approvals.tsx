// Calls of tools that wait for permission: exactly what would run, and the answers. Below them the rules that answers made.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { ApprovalView, RuleView } from "../api/generated";
import { buildLink } from "../router";
import { Action } from "../ui/action";
import { Facts } from "../ui/facts";
import { Field } from "../ui/field";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { Table } from "../ui/table";
import { formatFull } from "../ui/time";
import { words } from "../words";

export function Approvals() {
  const approvals = useResource((signal) => call("GET /api/approvals", {}, undefined, signal), [], (entry) => entry.kind.startsWith("approval"));
  return (
    <section aria-label={words.approvals.name}>
      <h3>{words.approvals.name}</h3>
      <Loaded resource={approvals}>
        {({ approvals: rows }) => (
          <>
            {!rows.length && <p class="hint">{words.approvals.none}</p>}
            <ul class="inbox">
              {rows.map((it) => (
                <Approval key={it.id} approval={it} reload={approvals.reload} />
              ))}
            </ul>
          </>
        )}
      </Loaded>
    </section>
  );
}

function Approval({ approval, reload }: { approval: ApprovalView; reload: () => void }) {
  const [note, write] = useState("");
  // the digest binds the answer to what is shown here
  const answer = (decision: "once" | "always" | "deny") => async () =>
    (await call("POST /api/approvals/{id}", { id: approval.id }, { decision, digest: approval.digest, ...(decision === "deny" && { note }) })).text;
  return (
    <li class="inbox-item approval">
      <p>
        <strong>{words.approvals.asks(approval.agent, approval.tool)}</strong> <a href={buildLink("session", [approval.session])}>{words.inspect.open}</a>
      </p>
      <pre class="block" tabIndex={0}>
        {approval.arguments}
      </pre>
      <Facts
        rows={[
          [words.approvals.askedBy, approval.asked_by],
          [words.approvals.effect, [approval.effect, approval.reach].filter(Boolean).join(", ")],
          [words.approvals.expires, formatFull(approval.expires)],
          [words.delivery.state, approval.state !== "open" && (words.approvals.states[approval.state] ?? approval.state)],
        ]}
      />
      {approval.can_answer && (
        <div class="row">
          <Action label={words.approvals.once} act={answer("once")} onDone={reload} />
          {approval.can_remember && <Action label={words.approvals.always} confirm={words.approvals.confirmAlways} act={answer("always")} onDone={reload} />}
          <Field label={words.approvals.note} value={note} onInput={write} />
          <Action label={words.approvals.deny} danger act={answer("deny")} onDone={reload} />
        </div>
      )}
    </li>
  );
}

export function Rules() {
  const rules = useResource((signal) => call("GET /api/rules", {}, undefined, signal), [], (entry) => entry.kind === "approval_decided");
  return (
    <section aria-label={words.approvals.rules}>
      <h3>{words.approvals.rules}</h3>
      <Loaded resource={rules}>
        {({ rules: rows }) => (
          <Table
            label={words.approvals.rules}
            rows={rows}
            getKey={(it) => it.id}
            empty={words.approvals.noRules}
            columns={[
              { title: words.agent, show: (it: RuleView) => it.agent },
              { title: words.tools.tool, show: (it) => it.tool },
              { title: words.tool.arguments, show: (it) => <code>{it.arguments}</code> },
              { title: words.approvals.by, show: (it) => it.by },
              { title: words.approvals.expires, show: (it) => formatFull(it.until) },
              {
                title: words.actions,
                show: (it) => (
                  <Action label={words.people.revoke} act={async () => void (await call("POST /api/rules/{id}/revoke", { id: it.id }))} onDone={rules.reload} />
                ),
              },
            ]}
          />
        )}
      </Loaded>
    </section>
  );
}
