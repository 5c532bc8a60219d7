// The field for a new message and its files.

import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "../api/client";
import { parseAddress } from "../state/address";
import { state, type KnownSession } from "../state/console_state";
import { words } from "../words";
import { AttachButton, AttachmentList, useAttachments } from "./attachments";

export function Composer({ session }: { session: KnownSession | undefined }) {
  const ours = Boolean(state.newChat.value) || state.isOwnChat(session);
  return ours ? <MessageForm session={session} /> : <ReadOnly session={session} />;
}

function MessageForm({ session }: { session: KnownSession | undefined }) {
  const [text, write] = useState("");
  const [over, setOver] = useState(false);
  const attachments = useAttachments();
  const field = useRef<HTMLTextAreaElement>(null);
  const target = state.newChat.value ?? parseAddress(session?.address);
  useEffect(() => field.current?.focus(), [state.openId.value, state.newChat.value?.chat]);
  const isEmpty = (!text.trim() && !attachments.files.length) || attachments.uploading > 0;
  const send = (event: Event) => {
    event.preventDefault();
    if (isEmpty) return;
    state.send(text, attachments.files);
    write("");
    attachments.clear();
  };
  const take = (event: Event, data: DataTransfer | null) => {
    const files = [...(data?.files ?? [])];
    setOver(false);
    if (!files.length) return;
    event.preventDefault();
    attachments.add(files);
  };
  const label = words.conversation.messageTo(target.agent);
  return (
    <form
      class={`composer${over ? " over" : ""}`}
      onSubmit={send}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => take(event, event.dataTransfer)}
    >
      <AttachmentList attachments={attachments} />
      <AttachButton add={attachments.add} />
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
        onPaste={(event) => take(event, event.clipboardData)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
        }}
      />
      {session?.busy && state.isLive && <StopButton id={session.id} />}
      <button type="submit" class="send" disabled={isEmpty}>
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
