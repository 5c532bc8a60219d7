// Shows the log of the open session as a conversation, and the field for new messages.

import { useMemo, useRef } from "preact/hooks";
import { call } from "../api/client";
import { buildLink } from "../router";
import { state } from "../state/console_state";
import { useResource } from "../ui/resource";
import { words } from "../words";
import { Composer } from "./composer";
import { useFollow } from "./follow";
import { Markdown } from "./markdown";
import { ConversationRow, OutgoingRow } from "./row";
import { listRows } from "./rows";
import { TurnState } from "./turn_state";

export function Conversation() {
  const session = state.getOpen();
  const log = state.getOpenLog();
  const draft = state.getOpenDraft();
  const rows = useMemo(() => listRows(log.entries), [log, log.entries.length, log.before]);
  const outgoing = state.listOutgoing();
  const end = useRef<HTMLDivElement>(null);
  const follow = useFollow(end, [rows.length, outgoing.length, draft?.text.length, state.openId.value]);
  const agent = session?.agent ?? state.newChat.value?.agent ?? "";
  const settled = rows.filter((row) => !row.waiting);
  return (
    <section class="conversation" aria-label={words.conversation.name}>
      <div class="scroll" ref={follow} role="log" aria-live="polite" aria-label={words.conversation.messages} tabIndex={0}>
        <ol class="messages">
          {log.before > 0 && (
            <li class="aside">
              <button class="quiet" onClick={() => void state.logs.loadEarlier(state.openId.value ?? "")}>
                {words.conversation.earlier}
              </button>
            </li>
          )}
          {!rows.length && !outgoing.length && <Empty />}
          {settled.map((row) => (
            <ConversationRow key={row.key} row={row} agent={agent} />
          ))}
          {draft && (
            <li class="agent draft" key="draft" aria-hidden="true">
              <p class="by">{agent}</p>
              <Markdown text={draft.text} />
            </li>
          )}
          <TurnState session={session} writes={Boolean(draft)} />
          {rows.slice(settled.length).map((row) => (
            <ConversationRow key={row.key} row={row} agent={agent} />
          ))}
          {outgoing.map((message) => (
            <OutgoingRow key={message.id} message={message} />
          ))}
        </ol>
        <div ref={end} />
      </div>
      <Composer session={session} />
    </section>
  );
}

function Empty() {
  return (
    <li class="empty">
      <h2>{words.conversation.emptyTitle}</h2>
      <p>{words.conversation.emptyText}</p>
      {state.caller.value?.operator && <OfflineHint />}
      {state.newChat.value && state.agents.value.length > 1 && (
        <p>
          <label>
            {words.agent}
            <select value={state.newChat.value.agent} onChange={(event) => state.startConversation(event.currentTarget.value)}>
              {state.agents.value.map((agent) => (
                <option value={agent}>{agent}</option>
              ))}
            </select>
          </label>
        </p>
      )}
    </li>
  );
}

// Tells an operator whose agents have no language model yet where to set one up.
function OfflineHint() {
  const { value } = useResource((signal) => call("GET /api/models", {}, undefined, signal), []);
  const isOffline = value?.models.every((it) => it.provider === "offline" || !it.agents.length);
  if (!isOffline) return null;
  return (
    <p>
      <a href={buildLink("setup")}>{words.setup.start}</a>
    </p>
  );
}
