// What waits for a person, each with its remedy and, where one step settles it, that step.

import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { InboxItemView, ToolServerView } from "../api/generated";
import { Approvals, Rules } from "../approvals/approvals";
import { buildLink } from "../router";
import { state } from "../state/console_state";
import { Action } from "../ui/action";
import { Field } from "../ui/field";
import { Loaded } from "../ui/loaded";
import { useResource } from "../ui/resource";
import { formatShort } from "../ui/time";
import { words } from "../words";

// Members see the requests that they may answer, operators also what else waits.
export default function InboxPage() {
  return (
    <>
      <h2>{words.pages.inbox}</h2>
      {state.caller.value?.operator && <Items />}
      <Approvals />
      <Rules />
    </>
  );
}

function Items() {
  const inbox = useResource((signal) => call("GET /api/inbox", {}, undefined, signal), [], (entry) => ["ended", "notified", "changed"].includes(entry.kind));
  return (
    <>
      <Loaded resource={inbox}>
        {({ items }) => (
          <>
            {!items.length && <p class="good">{words.inbox.empty}</p>}
            <ul class="inbox">
              {items.map((item) => (
                <Item key={item.id} item={item} reload={inbox.reload} />
              ))}
            </ul>
          </>
        )}
      </Loaded>
      <Action label={words.refresh} act={async () => inbox.reload()} />
    </>
  );
}

function Item({ item, reload }: { item: InboxItemView; reload: () => void }) {
  return (
    <li class={`inbox-item ${item.kind}`}>
      <p class="hint">
        {words.inbox.kinds[item.kind] ?? item.kind}
        {item.at !== null && ` · ${formatShort(item.at)}`}
      </p>
      <p class="plain">{item.title}</p>
      <p class="hint">{item.remedy}</p>
      <div class="row">
        <Step item={item} reload={reload} />
        <a href={findPlace(item)}>{words.inbox.open}</a>
      </div>
    </li>
  );
}

// The step that settles an item, if it needs no other page.
function Step({ item, reload }: { item: InboxItemView; reload: () => void }) {
  if (item.kind === "pairing") return <ApprovePairing reload={reload} />;
  if (item.kind === "tools") return <ConfirmTools server={item.data.server as ToolServerView} reload={reload} />;
  if (item.kind === "failing") return <Action label={words.conversation.tryNow} act={async () => void (await call("POST /api/retry"))} onDone={reload} />;
  return null;
}

export function ApprovePairing({ reload }: { reload: () => void }) {
  const [code, write] = useState("");
  return (
    <form class="row" onSubmit={(event) => event.preventDefault()}>
      <Field label={words.people.code} value={code} onInput={write} />
      <Action
        label={words.people.approve}
        disabled={!code.trim()}
        act={async () => {
          const done = await call("POST /api/pairing/approve", {}, { code: code.trim() });
          return words.people.approved(done.person || done.identity);
        }}
        onDone={reload}
      />
    </form>
  );
}

export function ConfirmTools({ server, reload }: { server: ToolServerView; reload: () => void }) {
  return (
    <div>
      {server.waiting.map((tool) => (
        <details>
          <summary>
            {tool.name} <span class="hint">{tool.state}</span>
          </summary>
          <pre class="block">{tool.description}</pre>
          {tool.before && (
            <>
              <p class="hint">{words.tools.before}</p>
              <pre class="block">{tool.before}</pre>
            </>
          )}
          <pre class="block">{tool.parameters}</pre>
        </details>
      ))}
      <Action
        label={words.tools.confirm(server.waiting.length)}
        confirm={words.tools.confirmAbout}
        act={async () => void (await call("POST /api/tools/{server}/confirm", { server: server.server }, { digest: server.digest }))}
        onDone={reload}
      />
    </div>
  );
}

// The page where an item is settled. The API names it by the parts of the console.
function findPlace(item: InboxItemView): string {
  const [path = "", query = ""] = item.about.split("?", 2);
  const [first = "", second = ""] = path.split("/");
  if (first === "session") return buildLink("session", [second]);
  if (path === "memory/dead-letters") return buildLink("deadLetters", [], Object.fromEntries(new URLSearchParams(query)));
  if (path === "setup/config") return buildLink("configuration");
  if (item.kind === "tools") return buildLink("tools");
  if (first === "people" || first === "memory") return buildLink(first === "people" ? "people" : "memories");
  return buildLink("health");
}
