// What the running turn does: it writes, works, waits after a failure, or cannot be seen because the gateway is away.

import { useEffect, useState } from "preact/hooks";
import { call } from "../api/client";
import type { TurnWaitView } from "../api/generated";
import { connection } from "../live/event_stream";
import { state, type KnownSession } from "../state/console_state";
import { formatExactTime, formatTime } from "../ui/time";
import { words } from "../words";
import { StopButton } from "./composer";

export function TurnState({ session, writes }: { session: KnownSession | undefined; writes: boolean }) {
  const { state: reached, since } = connection.value;
  if (reached === "offline")
    return (
      <li class="aside offline" key="offline" role="status">
        {words.conversation.notConnected(formatTime(since / 1000))}
      </li>
    );
  if (!session?.busy || writes) return null;
  return <Working session={session} />;
}

function Working({ session }: { session: KnownSession }) {
  const wait = useWait(session);
  if (!wait)
    return (
      <li class="aside thinking" key="thinking">
        <span class="dots" aria-hidden="true">
          <i />
          <i />
          <i />
        </span>
        {words.conversation.isWorking(session.agent)}
      </li>
    );
  return (
    <li class="notice failure" key="wait" role="status">
      <p class="plain">{wait.reason}</p>
      <p>
        {words.conversation.attempts(wait.attempts)}
        {wait.retry_at !== null && ` ${words.conversation.nextTry(formatExactTime(wait.retry_at))}`}
      </p>
      <p class="actions">
        {state.caller.value?.operator && (
          <button class="quiet" onClick={() => void call("POST /api/retry").catch(() => undefined)}>
            {words.conversation.tryNow}
          </button>
        )}
        <StopButton id={session.id} />
      </p>
    </li>
  );
}

const LOOKS_MS = [1500, 5_000, 15_000, 60_000]; // after the last entry, while the turn does not wait
const AFTER_TRY_MS = 500;

// Why the turn waits. The stream does not carry it, so it is read when the turn has been silent for a while, and again
// when its next attempt was due.
function useWait(session: KnownSession): TurnWaitView | null {
  const [wait, setWait] = useState<TurnWaitView | null>(null);
  useEffect(() => {
    let timer = 0;
    let looks = 0;
    let ended = false;
    const look = async () => {
      const found = await state.loadWait(session.id).catch(() => null);
      if (ended) return;
      setWait(found);
      plan(found?.retry_at ? Math.max(LOOKS_MS[0]!, found.retry_at * 1000 - Date.now() + AFTER_TRY_MS) : LOOKS_MS[looks++]);
    };
    const plan = (ms: number | undefined) => {
      if (ms !== undefined) timer = setTimeout(look, ms) as unknown as number;
    };
    plan(LOOKS_MS[looks++]);
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [session.id, session.last_seq]);
  return wait;
}
