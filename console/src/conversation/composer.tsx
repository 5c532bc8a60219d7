// The field for a new message.

import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "../api/client";
import { parseAddress } from "../state/address";
import { state, type KnownSession } from "../state/console_state";
import { words } from "../words";

export function Composer({ session }: { session: KnownSession | undefined }) {
  const [text, write] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  const target = state.newChat.value ?? parseAddress(session?.address);
  const ours = Boolean(state.newChat.value) || state.isOwnChat(session);
  useEffect(() => field.current?.focus(), [state.openId.value, state.newChat.value?.chat, ours]);
  if (!ours) return <ReadOnly session={session} />;
  const send = (event: Event) => {
    event.preventDefault();
    if (!text.trim()) return;
    state.send(text);
    write("");
  };
  const label = words.conversation.messageTo(target.agent);
  return (
    <form class="composer" onSubmit={send}>
      <label class="hidden" for="field">
        {label}
      </label>
      <textarea
        id="field"
        ref={field}
        rows={1}
        placeholder={label}
        value={text}
        onInput={(event) => write(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
        }}
      />
      {session?.busy && state.isLive && <StopButton id={session.id} />}
      <button type="submit" class="send" disabled={!text.trim()}>
        {words.conversation.send}
      </button>
    </form>
  );
}

export function StopButton({ id }: { id: string }) {
  const stop = () => void call("POST /api/sessions/{id}/stop", { id }).catch(() => undefined);
  return (
    <button type="button" class="quiet" onClick={stop}>
      {words.conversation.stop}
    </button>
  );
}

function ReadOnly({ session }: { session: KnownSession | undefined }) {
  if (!session) return <p class="composer readonly" />;
  const { platform } = parseAddress(session.address);
  return (
    <p class="composer readonly">
      {platform === "terminal" ? words.conversation.inTerminal(session.id) : words.conversation.onPlatform(platform)}
    </p>
  );
}
