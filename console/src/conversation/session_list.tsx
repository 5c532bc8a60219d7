// The sessions beside the conversation, the latest first.

import { parseAddress } from "../state/address";
import { state, type KnownSession } from "../state/console_state";
import { formatFull, formatShort } from "../ui/time";
import { words } from "../words";

export function SessionList({ onChosen }: { onChosen: () => void }) {
  const choose = (act: () => void) => () => {
    act();
    onChosen();
  };
  return (
    <nav class="sessions" aria-label={words.sessions.name}>
      <h2>{words.sessions.name}</h2>
      <button class="new" onClick={choose(() => state.startConversation())}>
        {words.sessions.new}
      </button>
      <ol class="scroll">
        {state.listSessions().map((session) => (
          <Item key={session.id} session={session} onChosen={choose(() => state.open(session.id))} />
        ))}
      </ol>
    </nav>
  );
}

export function nameSession(session: KnownSession | { id: string; title: string; first?: string; address: string }): string {
  return session.title || session.first || parseAddress(session.address).chat || session.id;
}

function Item({ session, onChosen }: { session: KnownSession; onChosen: () => void }) {
  const { platform } = parseAddress(session.address);
  return (
    <li>
      <button aria-current={session.id === state.openId.value ? "true" : undefined} onClick={onChosen}>
        <span class="title">{nameSession(session)}</span>
        <span class="where">
          {session.agent}
          {platform !== "http" && ` · ${platform}`}
          {session.busy && <span class="working">{words.sessions.working}</span>}
        </span>
        <time datetime={new Date(session.at * 1000).toISOString()} title={formatFull(session.at)}>
          {formatShort(session.at)}
        </time>
      </button>
    </li>
  );
}
