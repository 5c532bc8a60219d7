// The conversation: the list of sessions, the open one, and its log beside it.

import { useState } from "preact/hooks";
import { Conversation } from "../conversation/conversation";
import { LogView } from "../conversation/log_view";
import { nameSession, SessionList } from "../conversation/session_list";
import { buildLink } from "../router";
import { state } from "../state/console_state";
import { CopyButton } from "../ui/copy";
import { words } from "../words";

type Part = "sessions" | "conversation" | "log";

export function ConversationPage() {
  const [part, turn] = useState<Part>("conversation");
  return (
    <div class="talk" data-part={part}>
      <SessionList onChosen={() => turn("conversation")} />
      <main>
        <Head part={part} turn={turn} />
        <Conversation />
      </main>
      <LogView />
    </div>
  );
}

function Head({ part, turn }: { part: Part; turn: (part: Part) => void }) {
  const session = state.getOpen();
  const parts: Array<[Part, string]> = [
    ["sessions", words.sessions.name],
    ["conversation", words.conversation.name],
    ["log", words.log.name],
  ];
  return (
    <div class="head">
      <h2 class="title">{session ? nameSession(session) : words.conversation.new}</h2>
      {session && (
        <span class="id" data-session={session.id}>
          <CopyButton text={session.id} label={words.conversation.copyId}>
            {words.conversation.id}
          </CopyButton>
          <a class="quiet" href={buildLink("inspect", [session.id])}>
            {words.sessions.details}
          </a>
        </span>
      )}
      <nav class="parts" aria-label={words.conversation.parts}>
        {parts.map(([name, label]) => (
          <button class="quiet" data-part={name} aria-pressed={part === name} onClick={() => turn(name)}>
            {label}
          </button>
        ))}
      </nav>
    </div>
  );
}
