// One row of a conversation.

import { useState } from "preact/hooks";
import { ApiError, call } from "../api/client";
import { buildLink } from "../router";
import { state } from "../state/console_state";
import type { OutgoingMessage } from "../state/outbox";
import { formatBytes } from "../ui/time";
import { words } from "../words";
import { Markdown } from "./markdown";
import type { Row } from "./rows";
import { ToolCards } from "./tool_cards";

export function ConversationRow({ row, agent }: { row: Row; agent: string }) {
  const undone = row.undone ? " undone" : "";
  switch (row.kind) {
    case "person":
      return (
        <li class={`person${undone}${row.waiting ? " queued" : ""}`}>
          <By name={row.author} row={row} />
          <div class="text">
            <p class="plain">{row.text}</p>
          </div>
          <Files files={row.files} />
          {row.waiting ? <p class="by">{words.conversation.readNext}</p> : <PinButton row={row} />}
        </li>
      );
    case "agent":
      return (
        <li class={`agent${undone}`}>
          <By name={agent} row={row} />
          <Markdown text={row.text} />
          <Files files={row.files} />
          <PinButton row={row} />
          {row.thought > 0 && <Reasons seq={row.thought} />}
        </li>
      );
    case "tools":
      return (
        <li class={`tools${undone}`}>
          <ToolCards cards={row.cards} />
        </li>
      );
    case "notice":
    case "failure":
      return (
        <li class={`notice ${row.kind}${undone}`}>
          <p class="plain">{row.text}</p>
        </li>
      );
    default:
      return <li class={`aside${undone}`}>{row.text}</li>;
  }
}

// Links to what the model was shown for an answer, and why.
function Reasons({ seq }: { seq: number }) {
  const link = (part: string) => buildLink("inspect", [state.openId.value ?? "", part], { at: String(seq) });
  return (
    <span class="reasons">
      <a href={link("why")}>{words.conversation.why}</a> <a href={link("context")}>{words.conversation.context}</a>
    </span>
  );
}

function By({ name, row }: { name: string; row: Row }) {
  return (
    <p class="by">
      {name}
      {row.pinned && ` · ${words.conversation.pinned}`}
    </p>
  );
}

function Files({ files }: { files: Array<{ name?: string; size?: number }> }) {
  if (!files.length) return null;
  return (
    <ul class="files">
      {files.map((file) => (
        <li>
          {file.name || words.conversation.file} <span class="hint">{formatBytes(file.size ?? 0)}</span>
        </li>
      ))}
    </ul>
  );
}

// Keeps an entry in the context word for word, or no longer. The log says when it is done; a refusal is shown here.
function PinButton({ row }: { row: Row }) {
  const [refused, refuse] = useState("");
  const press = async () => {
    const id = state.openId.value ?? "";
    try {
      const done = await call(row.pinned ? "POST /api/sessions/{id}/unpin" : "POST /api/sessions/{id}/pin", { id }, { seq: row.seq });
      refuse(done.done ? "" : done.message);
    } catch (error) {
      refuse(error instanceof ApiError ? error.message : String(error));
    }
  };
  return (
    <>
      <button class="quiet pin" aria-label={words.conversation.pinEntry(row.pinned, row.seq)} onClick={() => void press()}>
        {row.pinned ? words.conversation.unpin : words.conversation.pin}
      </button>
      {refused && (
        <span class="bad" role="status">
          {refused}
        </span>
      )}
    </>
  );
}

export function OutgoingRow({ message }: { message: OutgoingMessage }) {
  return (
    <li class="person waiting">
      <div class="text">
        <p class="plain">{message.text}</p>
      </div>
      <Files files={message.files ?? []} />
      <p class="by">
        {message.refused ? (
          <>
            <span class="bad">{words.conversation.notAccepted(message.refused)}</span>
            <button class="quiet" onClick={() => state.outbox.remove(message.id)}>
              {words.conversation.dismiss}
            </button>
          </>
        ) : message.sent ? (
          words.conversation.accepted
        ) : state.isLive ? (
          words.conversation.sending
        ) : (
          words.conversation.waitsForGateway
        )}
      </p>
    </li>
  );
}
