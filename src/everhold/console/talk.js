// A session's log as a conversation: what was said and done, in the order it happened.

import { html, useEffect, useRef, useState } from "./preact.js";
import { placeOf } from "./house.js";
import { Words } from "./words.js";

export function Talk({ house }) {
  const session = house.sessions.get(house.open);
  const log = house.log();
  const draft = house.drafts.get(house.open);
  const rows = rowsOf(log.entries);
  const waiting = house.waiting();
  const end = useRef(null);
  const follow = useFollow(end, [rows.length, waiting.length, draft?.text.length, house.open]);
  const empty = !rows.length && !waiting.length;
  return html`
    <section class="talk" aria-label="Conversation">
      <div class="scroll" ref=${follow} role="log" aria-live="polite" aria-label="Messages" tabindex="0">
        <ol class="messages">
          ${log.before > 0 &&
          html`<li class="aside"><button class="quiet" onClick=${() => house.earlier(house.open)}>Show earlier</button></li>`}
          ${empty && html`<${Empty} house=${house} />`}
          ${rows.map((row) => html`<${Row} key=${row.seq} row=${row} agent=${session?.agent} />`)}
          ${waiting.map((message) => html`<${Waiting} key=${message.id} message=${message} house=${house} />`)}
          ${draft &&
          html`<li class="agent draft" key="draft" aria-hidden="true">
            <p class="by">${session?.agent}</p>
            <${Words} text=${draft.text} />
          </li>`}
          ${!draft &&
          session?.busy &&
          html`<li class="aside thinking" key="thinking"><span class="dots" aria-hidden="true"><i></i><i></i><i></i></span>${session.agent} is at it</li>`}
        </ol>
        <div ref=${end}></div>
      </div>
      <${Composer} house=${house} session=${session} />
    </section>
  `;
}

function Empty({ house }) {
  return html`<li class="empty">
    <h2>Say something</h2>
    <p>
      What you say is kept before it is acknowledged, and it is answered once. You can watch the log of this conversation
      grow beside it.
    </p>
    ${house.fresh &&
    house.agents.length > 1 &&
    html`<p>
      <label>
        You speak to
        <select value=${house.fresh.agent} onChange=${(event) => house.start(event.target.value)}>
          ${house.agents.map((agent) => html`<option value=${agent}>${agent}</option>`)}
        </select>
      </label>
    </p>`}
  </li>`;
}

function Row({ row, agent }) {
  const undone = row.undone ? " undone" : "";
  switch (row.kind) {
    case "heard":
      return html`<li class=${`person${undone}`}>
        <p class="by">${row.author}</p>
        <div class="words"><p class="plain">${row.text}</p></div>
      </li>`;
    case "said":
      return html`<li class=${`agent${undone}`}>
        <p class="by">${agent}</p>
        <${Words} text=${row.text} />
      </li>`;
    case "notified":
      return html`<li class=${`notice${undone}`}><p class="plain">${row.text}</p></li>`;
    default:
      return html`<li class=${`aside${undone}`}>${row.text}</li>`;
  }
}

function Waiting({ message, house }) {
  return html`<li class="person waiting">
    <div class="words"><p class="plain">${message.text}</p></div>
    <p class="by">
      ${message.refused
        ? html`<span class="bad">not accepted: ${message.refused}</span>
            <button class="quiet" onClick=${() => house.dismiss(message.id)}>Dismiss</button>`
        : message.sent
          ? "kept"
          : house.state === "live"
            ? "sending…"
            : "waits here until everhold is back"}
    </p>
  </li>`;
}

function Composer({ house, session }) {
  const [text, write] = useState("");
  const field = useRef(null);
  const place = house.fresh ?? placeOf(session);
  const ours = Boolean(house.fresh) || house.ours(session);
  useEffect(() => field.current?.focus(), [house.open, house.fresh?.chat]);
  if (!ours)
    return html`<p class="composer readonly">
      ${!session
        ? ""
        : place.platform === "terminal"
          ? `This conversation is in a terminal: everhold chat --session ${session.id}. You can read it here.`
          : `This conversation is on ${place.platform}. You can read it here.`}
    </p>`;
  const send = (event) => {
    event.preventDefault();
    if (!text.trim()) return;
    house.say(text);
    write("");
  };
  return html`<form class="composer" onSubmit=${send}>
    <label class="hidden" for="field">Message to ${place.agent}</label>
    <textarea
      id="field"
      ref=${field}
      rows="1"
      placeholder=${`Message to ${place.agent}`}
      value=${text}
      onInput=${(event) => write(event.target.value)}
      onKeyDown=${(event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
      }}
    ></textarea>
    ${session?.busy && html`<button type="button" class="quiet" onClick=${() => house.stop()}>Stop</button>`}
    <button type="submit" class="send" disabled=${!text.trim()}>Send</button>
  </form>`;
}

// Stay at the end while somebody reads there, and leave them alone when they have scrolled away.
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

// What of a log is shown here. Undone turns stay, but fade: nothing is deleted.
export function rowsOf(entries) {
  const undone = new Set();
  const taken = new Map(); // heard seq -> operation
  for (const { kind, body, op } of entries) {
    if (kind === "changed" && body?.change?.type === "operations_undone") body.change.ops.forEach((gone) => undone.add(gone));
    if (kind === "began" || kind === "took") body?.takes?.forEach((seq) => taken.set(seq, op));
  }
  const rows = [];
  for (const entry of entries) {
    const text = textOf(entry);
    if (text === null) continue;
    const op = entry.kind === "heard" ? taken.get(entry.seq) : entry.op;
    rows.push({ seq: entry.seq, kind: entry.kind, text, undone: undone.has(op), author: entry.author.replace(/^person:/, "") });
  }
  return rows;
}

function textOf({ kind, body }) {
  if (body === null) return kind === "heard" || kind === "said" ? "(erased)" : null;
  switch (kind) {
    case "heard":
      return body.command ? `/${body.command.name} ${body.command.argument ?? ""}`.trim() : body.text;
    case "said":
    case "notified":
      return body.text;
    case "thought":
      return body.calls?.length ? `uses ${body.calls.map((call) => call.tool).join(", ")}` : null;
    case "noted":
      return `${body.action === "remove" ? "takes back" : "remembers"}: ${body.text}`;
    case "compressed":
      return "what came before is summed up from here on";
    case "ended":
      return ["failed", "stopped", "interrupted"].includes(body.outcome) ? `${body.outcome}${body.reason ? `: ${body.reason}` : ""}` : null;
    case "changed":
      return { context_reset: "a fresh start", operations_undone: "taken back", session_titled: `named “${body.change.title}”`, branched_from: "a branch begins" }[body.change.type] ?? null;
    default:
      return null;
  }
}
