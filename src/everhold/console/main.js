// The console: a list of sessions, the open conversation, and its log. All of it is rendered from the log.

import { html, render, useEffect, useReducer, useState } from "./preact.js";
import { ConsoleState, parseAddress, readFragment } from "./state.js";
import { EventStream } from "./event_stream.js";
import { LogView } from "./log_view.js";
import { Conversation } from "./conversation.js";
import { Login, LoginPage, OfferedLogin } from "./login.js";

const CONNECTION_TEXTS = {
  connecting: "connecting…",
  live: "live",
  offline: "offline · reconnecting",
  denied: "not allowed",
};

let drawn = false;
let draw = () => {};
function scheduleDraw() {
  if (drawn) return;
  drawn = true;
  // browsers draw no frames for a hidden tab, but it must be up to date when it is shown again
  (document.hidden ? setTimeout : requestAnimationFrame)(() => {
    drawn = false;
    draw();
  });
}
const login = new Login(() => {
  if (login.state !== "in") state.forgetCaller();
  events.restart();
  scheduleDraw();
});
const state = new ConsoleState(scheduleDraw, login);
const events = new EventStream({
  login,
  onEntry: (entry) => state.onEntry(entry),
  onDelta: (delta) => state.onDelta(delta),
  onReset: (reset) => state.onReset(reset),
  onHello: (data, restored) => state.onHello(data, restored),
  onConnection: (connection) => state.setConnection(connection),
});

function Console() {
  const [, again] = useReducer((count) => count + 1, 0);
  const [part, turn] = useState("conversation");
  useEffect(() => {
    draw = () => again();
    login.useLink().finally(() => events.run());
    const go = () => {
      if (location.hash.startsWith("#code=")) return void login.useLink();
      const wanted = readFragment();
      if (state.sessions.has(wanted) && wanted !== state.openId) state.openSession(wanted);
    };
    addEventListener("hashchange", go);
    return () => removeEventListener("hashchange", go);
  }, []);
  if (login.state !== "in") return html`<${LoginPage} login=${login} />`;
  return html`
    ${login.offered && html`<${OfferedLogin} login=${login} />`}
    <div class="console" data-part=${part}>
      <${Bar} part=${part} turn=${turn} />
      <${Sessions} chosen=${() => turn("conversation")} />
      <main><${Conversation} state=${state} /></main>
      <${LogView} state=${state} />
    </div>
  `;
}

function Bar({ part, turn }) {
  const session = state.sessions.get(state.openId);
  return html`<header>
    <h1><img src="/static/logo.svg" alt="" width="22" height="22" /> everhold</h1>
    <${Id} id=${session?.id} />
    <nav aria-label="Parts of the console">
      ${["sessions", "conversation", "log"].map(
        (name) => html`<button class="quiet" aria-pressed=${part === name} onClick=${() => turn(name)}>${name}</button>`,
      )}
    </nav>
    <p class=${`state ${state.connection}`} role="status"><span class="dot" aria-hidden="true"></span>${CONNECTION_TEXTS[state.connection]}</p>
    ${state.caller?.login && html`<span class="who">${state.caller.name}</span><button class="quiet logout" onClick=${() => login.logOut()}>Log out</button>`}
  </header>`;
}

function Id({ id }) {
  const [copied, setCopied] = useState(false);
  if (!id) return html`<p class="id">new conversation</p>`;
  const copy = async () => {
    await navigator.clipboard?.writeText(id);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<p class="id">
    session <button class="quiet" title="copy" onClick=${copy}><code data-session=${id}>${id}</code></button>
    <span class="hint" aria-live="polite">${copied ? "copied" : ""}</span>
  </p>`;
}

function Sessions({ chosen }) {
  return html`<nav class="sessions" aria-label="Sessions">
    <h2>Sessions</h2>
    <button
      class="new"
      onClick=${() => {
        state.startConversation();
        chosen();
      }}
    >
      New conversation
    </button>
    <ol class="scroll">
      ${state.listSessions().map((session) => html`<${Session} key=${session.id} session=${session} chosen=${chosen} />`)}
    </ol>
  </nav>`;
}

function Session({ session, chosen }) {
  const target = parseAddress(session);
  const at = new Date(session.lastActivity);
  const today = at.toDateString() === new Date().toDateString();
  return html`<li>
    <button
      aria-current=${session.id === state.openId ? "true" : undefined}
      onClick=${() => {
        state.openSession(session.id);
        chosen();
      }}
    >
      <span class="title">${session.title || session.firstText || target.chat || session.id}</span>
      <span class="where">
        ${session.agent}${target.platform === "http" ? "" : ` · ${target.platform}`}
        ${session.busy ? html`<span class="working">working</span>` : ""}
      </span>
      <time datetime=${at.toISOString()}>
        ${today ? at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }) : at.toLocaleDateString([], { day: "numeric", month: "short" })}
      </time>
    </button>
  </li>`;
}

render(html`<${Console} />`, document.getElementById("console"));
