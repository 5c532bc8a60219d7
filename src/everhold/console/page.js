// The page: sessions on the left, the conversation, and its log. Everything shown comes from the log.

import { html, render, useEffect, useReducer, useState } from "./preact.js";
import { House, placeOf } from "./house.js";
import { Live } from "./live.js";
import { Log } from "./log.js";
import { Talk } from "./talk.js";

const STATES = {
  connecting: "connecting…",
  live: "live",
  offline: "offline · comes back by itself",
  denied: "not allowed · reload and give the token",
};

let drawn = false;
let draw = () => {};
const house = new House(() => {
  if (drawn) return;
  drawn = true;
  // a hidden page is not drawn, and must still be right when it is looked at again
  (document.hidden ? setTimeout : requestAnimationFrame)(() => {
    drawn = false;
    draw();
  });
});
const live = new Live({
  onEntry: (entry) => house.entry(entry),
  onDelta: (delta) => house.delta(delta),
  onReset: (reset) => house.reset(reset),
  onHello: (data, restored) => house.hello(data, restored),
  onState: (state) => house.status(state),
});

function Page() {
  const [, again] = useReducer((count) => count + 1, 0);
  const [part, turn] = useState("talk");
  useEffect(() => {
    draw = () => again();
    live.run();
    const go = () => {
      const wanted = decodeURIComponent(location.hash.slice(1));
      if (house.sessions.has(wanted) && wanted !== house.open) house.show(wanted);
    };
    addEventListener("hashchange", go);
    return () => removeEventListener("hashchange", go);
  }, []);
  return html`
    <div class="page" data-part=${part}>
      <${Bar} part=${part} turn=${turn} />
      <${Sessions} chosen=${() => turn("talk")} />
      <main><${Talk} house=${house} /></main>
      <${Log} house=${house} />
    </div>
  `;
}

function Bar({ part, turn }) {
  const session = house.sessions.get(house.open);
  return html`<header>
    <h1><img src="/static/mark.svg" alt="" width="22" height="22" /> everhold</h1>
    <${Id} id=${session?.id} />
    <nav aria-label="Parts of this page">
      ${["sessions", "talk", "log"].map(
        (name) => html`<button class="quiet" aria-pressed=${part === name} onClick=${() => turn(name)}>${name}</button>`,
      )}
    </nav>
    <p class=${`state ${house.state}`} role="status"><span class="dot" aria-hidden="true"></span>${STATES[house.state]}</p>
  </header>`;
}

function Id({ id }) {
  const [copied, tell] = useState(false);
  if (!id) return html`<p class="id">a new conversation</p>`;
  const copy = async () => {
    await navigator.clipboard?.writeText(id);
    tell(true);
    setTimeout(() => tell(false), 1500);
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
        house.start();
        chosen();
      }}
    >
      New conversation
    </button>
    <ol class="scroll">
      ${house.listed().map((session) => html`<${Session} key=${session.id} session=${session} chosen=${chosen} />`)}
    </ol>
  </nav>`;
}

function Session({ session, chosen }) {
  const place = placeOf(session);
  const at = new Date(session.seen);
  const today = at.toDateString() === new Date().toDateString();
  return html`<li>
    <button
      aria-current=${session.id === house.open ? "true" : undefined}
      onClick=${() => {
        house.show(session.id);
        chosen();
      }}
    >
      <span class="title">${session.title || session.words || place.chat || session.id}</span>
      <span class="where">
        ${session.agent}${place.platform === "http" ? "" : ` · ${place.platform}`}
        ${session.busy ? html`<span class="working">at it</span>` : ""}
      </span>
      <time datetime=${at.toISOString()}>
        ${today ? at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }) : at.toLocaleDateString([], { day: "numeric", month: "short" })}
      </time>
    </button>
  </li>`;
}

render(html`<${Page} />`, document.getElementById("page"));
