// Shows the log of the open session as a conversation, and the field for new messages.

import { html, useEffect, useRef, useState } from "./preact.js";
import { parseAddress } from "./state.js";
import { Markdown } from "./markdown.js";

export function Conversation({ state }) {
  const session = state.sessions.get(state.openId);
  const log = state.getLog();
  const draft = state.drafts.get(state.openId);
  const rows = listRows(log.entries);
  const waiting = state.listWaiting();
  const end = useRef(null);
  const follow = useFollow(end, [rows.length, waiting.length, draft?.text.length, state.openId]);
  const empty = !rows.length && !waiting.length;
  return html`
    <section class="conversation" aria-label="Conversation">
      <div class="scroll" ref=${follow} role="log" aria-live="polite" aria-label="Messages" tabindex="0">
        <ol class="messages">
          ${log.before > 0 &&
          html`<li class="aside"><button class="quiet" onClick=${() => state.loadEarlier(state.openId)}>Show earlier</button></li>`}
          ${empty && html`<${Empty} state=${state} />`}
          ${rows.map((row) => html`<${Row} key=${row.seq} row=${row} agent=${session?.agent} state=${state} />`)}
          ${waiting.map((message) => html`<${Waiting} key=${message.id} message=${message} state=${state} />`)}
          ${draft &&
          html`<li class="agent draft" key="draft" aria-hidden="true">
            <p class="by">${session?.agent}</p>
            <${Markdown} text=${draft.text} />
          </li>`}
          ${!draft &&
          session?.busy &&
          html`<li class="aside thinking" key="thinking"><span class="dots" aria-hidden="true"><i></i><i></i><i></i></span>${session.agent} is working</li>`}
        </ol>
        <div ref=${end}></div>
      </div>
      <${Composer} state=${state} session=${session} />
    </section>
  `;
}

function Empty({ state }) {
  return html`<li class="empty">
    <h2>Send a message</h2>
    <p>
      everhold commits your message before it acknowledges it, and answers it once. The log of this conversation is shown
      beside it.
    </p>
    ${state.newChat &&
    state.agents.length > 1 &&
    html`<p>
      <label>
        Agent
        <select value=${state.newChat.agent} onChange=${(event) => state.startConversation(event.target.value)}>
          ${state.agents.map((agent) => html`<option value=${agent}>${agent}</option>`)}
        </select>
      </label>
    </p>`}
  </li>`;
}

function Row({ row, agent, state }) {
  const undone = row.undone ? " undone" : "";
  switch (row.kind) {
    case "heard":
      return html`<li class=${`person${undone}`}>
        <p class="by">${row.author}${row.pinned && " · pinned"}</p>
        <div class="text"><p class="plain">${row.text}</p></div>
        <${PinButton} row=${row} state=${state} />
      </li>`;
    case "said":
      return html`<li class=${`agent${undone}`}>
        <p class="by">${agent}${row.pinned && " · pinned"}</p>
        <${Markdown} text=${row.text} />
        <${PinButton} row=${row} state=${state} />
      </li>`;
    case "notified":
      return html`<li class=${`notice${undone}`}><p class="plain">${row.text}</p></li>`;
    default:
      return html`<li class=${`aside${undone}`}>${row.text}</li>`;
  }
}

// Keeps an entry in the context word for word, or no longer. The log says when it is done; a refusal is shown here.
function PinButton({ row, state }) {
  const [refused, refuse] = useState("");
  const word = row.pinned ? "Unpin" : "Pin";
  const press = async () => refuse(await state.changePin(row.seq, !row.pinned));
  return html`<button class="quiet pin" aria-label=${`${word} entry ${row.seq}`} onClick=${press}>${word}</button>
    ${refused && html`<span class="bad" role="status"> ${refused}</span>`}`;
}

function Waiting({ message, state }) {
  return html`<li class="person waiting">
    <div class="text"><p class="plain">${message.text}</p></div>
    <p class="by">
      ${message.refused
        ? html`<span class="bad">not accepted: ${message.refused}</span>
            <button class="quiet" onClick=${() => state.dismissMessage(message.id)}>Dismiss</button>`
        : message.sent
          ? "accepted"
          : state.connection === "live"
            ? "sending…"
            : "waits until everhold is reachable"}
    </p>
  </li>`;
}

function Composer({ state, session }) {
  const [text, write] = useState("");
  const field = useRef(null);
  const target = state.newChat ?? parseAddress(session);
  const ours = Boolean(state.newChat) || state.isOwnChat(session);
  useEffect(() => field.current?.focus(), [state.openId, state.newChat?.chat]);
  if (!ours)
    return html`<p class="composer readonly">
      ${!session
        ? ""
        : target.platform === "terminal"
          ? `This conversation is in a terminal: everhold chat --session ${session.id}. You can read it here.`
          : `This conversation is on ${target.platform}. You can read it here.`}
    </p>`;
  const send = (event) => {
    event.preventDefault();
    if (!text.trim()) return;
    state.sendMessage(text);
    write("");
  };
  return html`<form class="composer" onSubmit=${send}>
    <label class="hidden" for="field">Message to ${target.agent}</label>
    <textarea
      id="field"
      ref=${field}
      rows="1"
      placeholder=${`Message to ${target.agent}`}
      value=${text}
      onInput=${(event) => write(event.target.value)}
      onKeyDown=${(event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
      }}
    ></textarea>
    ${session?.busy && html`<button type="button" class="quiet" onClick=${() => state.stopTurn()}>Stop</button>`}
    <button type="submit" class="send" disabled=${!text.trim()}>Send</button>
  </form>`;
}

// Scrolls to the end when the content grows, unless the user has scrolled away from it.
export function useFollow(end, grown) {
  const box = useRef(null);
  const there = useRef(true);
  useEffect(() => {
    const element = box.current;
    const look = () => (there.current = element.scrollHeight - element.scrollTop - element.clientHeight < 80);
    element.addEventListener("scroll", look, { passive: true });
    return () => element.removeEventListener("scroll", look);
  }, []);
  useEffect(() => {
    if (there.current) end.current?.scrollIntoView({ block: "end" });
  }, grown);
  return box;
}

// Returns the entries to show. Undone turns are shown faded.
export function listRows(entries) {
  const undone = new Set();
  const taken = new Map(); // heard seq -> operation
  const pins = new Map(); // operation of a pin -> the pinned seq
  for (const { kind, body, op, seq } of entries) {
    if (kind === "changed" && body?.change?.type === "operations_undone") body.change.ops.forEach((gone) => undone.add(gone));
    if (kind === "changed" && body?.change?.type === "context_reset") pins.clear();
    if (kind === "changed" && body?.change?.type === "entry_pinned" && !body.change.session) pins.set(seq, body.change.seq);
    if (kind === "began" || kind === "took") body?.takes?.forEach((seq) => taken.set(seq, op));
  }
  const pinned = new Set([...pins].filter(([op]) => !undone.has(op)).map(([, seq]) => seq));
  const rows = [];
  for (const entry of entries) {
    const text = renderText(entry);
    if (text === null) continue;
    const op = entry.kind === "heard" ? taken.get(entry.seq) : entry.op;
    rows.push({ seq: entry.seq, kind: entry.kind, text, undone: undone.has(op), pinned: pinned.has(entry.seq), author: entry.author.replace(/^person:(local:|http:)?/, "") });
  }
  return rows;
}

function renderText({ kind, body }) {
  if (body === null) return kind === "heard" || kind === "said" ? "(erased)" : null;
  switch (kind) {
    case "heard":
      return body.command ? `/${body.command.name} ${body.command.argument ?? ""}`.trim() : describeHeard(body);
    case "said":
    case "notified":
      return body.text;
    case "thought":
      return body.calls?.length ? `uses ${body.calls.map((call) => call.tool).join(", ")}` : null;
    case "noted":
      return `${body.action === "remove" ? "removes" : "remembers"}: ${body.text}`;
    case "compressed":
      return "earlier messages are replaced by a summary";
    case "ended":
      return ["failed", "stopped", "interrupted"].includes(body.outcome) ? `${body.outcome}${body.reason ? `: ${body.reason}` : ""}` : null;
    case "changed":
      return { context_reset: "new context", operations_undone: "undone", session_titled: `titled “${body.change.title}”`, branched_from: "branch created", entry_pinned: `pinned entry ${body.change.seq}` }[body.change.type] ?? null;
    default:
      return null;
  }
}

// The sender's own words, then every forwarded, quoted or embedded text behind the line that names its author.
export function describeHeard({ text, pieces = [] }) {
  const quoted = pieces.map((piece) => {
    const who = piece.own ? "sender" : [...new Set([piece.name, piece.by])].filter(Boolean).join(" ");
    const lines = (piece.text ?? "").split(/\r\n|[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]/);
    return [`[${piece.source} from ${who || "an unknown author"}]`, ...lines.map((line) => `| ${line}`)].join("\n");
  });
  return [text, ...quoted].filter(Boolean).join("\n");
}
