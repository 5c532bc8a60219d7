// What the page knows: sessions, their logs, replies while they are made, and what was typed but is not yet kept.

const PAGE = 400;
const OUTBOX = "everhold.outbox";
const ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz";

export class House {
  constructor(changed) {
    this.changed = changed;
    this.state = "connecting";
    this.me = null;
    this.agents = [];
    this.sessions = new Map();
    this.logs = new Map();
    this.drafts = new Map();
    this.outbox = recall(OUTBOX) ?? [];
    this.open = null; // a session's id
    this.fresh = null; // a conversation that has no session yet: {agent, chat}
  }

  // -- asking

  async get(path) {
    const response = await fetch(path, { cache: "no-store" });
    if (!response.ok) throw Object.assign(new Error(path), { status: response.status });
    return response.json();
  }

  async post(path, body) {
    const response = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    const answer = await response.json();
    if (!response.ok) throw Object.assign(new Error(answer.error?.message ?? response.statusText), { answer, status: response.status });
    return answer;
  }

  // -- what there is

  async look() {
    const [me, models, listed] = await Promise.all(["/api/me", "/v1/models", "/api/sessions?limit=200"].map((path) => this.get(path)));
    this.me = me;
    this.agents = models.data.map((model) => model.id);
    for (const session of listed.sessions) this.know(session);
    if (!this.open && !this.fresh) {
      const wanted = decodeURIComponent(location.hash.slice(1));
      const own = this.listed().find((session) => this.ours(session));
      if (this.sessions.has(wanted)) this.show(wanted);
      else if (own) this.show(own.id);
      else this.start();
    }
    if (this.open) await this.fill(this.open);
    this.changed();
    this.deliver();
  }

  know(session) {
    const before = this.sessions.get(session.id);
    const seen = before?.seen ?? bornAt(session.id);
    // an answer that was long on its way knows less than the events that overtook it
    const news = before && before.last_seq > session.last_seq ? before : { ...session, busy: session.state === "turn" };
    this.sessions.set(session.id, { ...session, ...news, seen, words: before?.words });
  }

  async learn(id) {
    this.know(await this.get(`/api/sessions/${id}`));
    this.changed();
  }

  // Whether what is typed here is heard there: a chat of whoever looks at this page.
  ours(session) {
    const { platform, kind, chat, person } = placeOf(session);
    return platform === "http" && kind === "dm" && (person ? person === this.me?.name : Boolean(chat && this.me?.local));
  }

  listed() {
    return [...this.sessions.values()].sort((a, b) => b.seen - a.seen);
  }

  forget() {
    this.sessions.clear();
    this.logs.clear();
    this.drafts.clear();
    this.open = null;
  }

  // -- one conversation

  start(agent = this.agents.includes("main") ? "main" : this.agents[0]) {
    const taken = new Set([...this.sessions.values()].map((session) => placeOf(session).chat));
    let number = 1;
    while (taken.has(`talk-${number}`)) number += 1;
    this.fresh = { agent, chat: `talk-${number}` };
    this.open = null;
    history.replaceState(null, "", location.pathname);
    this.changed();
  }

  show(id) {
    this.open = id;
    this.fresh = null;
    history.replaceState(null, "", `#${id}`);
    this.changed();
    return this.fill(id).catch(() => {});
  }

  log(id = this.open) {
    return this.logs.get(id) ?? { entries: [], before: 0 };
  }

  // Everything after what is known; the first time only the newest part of a long log.
  async fill(id) {
    let log = this.logs.get(id);
    if (!log) {
      const session = await this.get(`/api/sessions/${id}`);
      this.know(session);
      log = { entries: [], before: Math.max(0, session.last_seq - PAGE), filling: null };
      this.logs.set(id, log);
    }
    if (log.filling) return (log.again = true), log.filling;
    log.filling = (async () => {
      do {
        log.again = false;
        const after = log.entries.at(-1)?.seq ?? log.before;
        const { entries } = await this.get(`/api/sessions/${id}/entries?after=${after}`);
        log.entries.push(...entries.filter((entry) => entry.seq > (log.entries.at(-1)?.seq ?? log.before)));
      } while (log.again);
    })().finally(() => {
      log.filling = null;
      this.name(id, log.entries[0]);
      this.changed();
    });
    return log.filling;
  }

  // A conversation without a title is called by its first words.
  name(id, entry) {
    const known = this.sessions.get(id);
    if (known && entry?.seq === 1 && entry.kind === "heard") known.words = entry.body?.text;
  }

  async earlier(id) {
    const log = this.log(id);
    const after = Math.max(0, log.before - PAGE);
    const { entries } = await this.get(`/api/sessions/${id}/entries?after=${after}&limit=${log.before - after}`);
    log.entries.unshift(...entries);
    log.before = after;
    this.changed();
  }

  // -- what happens

  hello(data, restored) {
    if (restored) this.forget(); // the store was put back from a copy: nothing of what we know need be so
    this.look().catch(() => {});
  }

  entry(entry) {
    const { session, kind } = entry;
    const log = this.logs.get(session);
    if (log && !log.filling) {
      const last = log.entries.at(-1)?.seq ?? log.before;
      if (entry.seq === last + 1) log.entries.push(entry);
      else if (entry.seq > last) this.fill(session).catch(() => {});
    } else if (log) log.again = true;
    const known = this.sessions.get(session);
    if (known) {
      known.seen = entry.at * 1000;
      known.last_seq = entry.seq;
      this.name(session, entry);
      if (kind === "began" && entry.body?.type === "turn") known.busy = true;
      if (kind === "ended") known.busy = false;
      if (kind === "changed" && entry.body?.change?.type === "session_titled") known.title = entry.body.change.title;
    } else this.learn(session).catch(() => {});
    if (["thought", "said", "ended"].includes(kind)) this.drafts.delete(session);
    if (kind === "heard") this.arrived(entry.body?.origin?.message, session);
    this.changed();
  }

  delta({ session, op, text }) {
    const draft = this.drafts.get(session);
    this.drafts.set(session, draft?.op === op ? { op, text: draft.text + text } : { op, text });
    this.changed();
  }

  reset({ session, op }) {
    this.drafts.set(session, { op, text: "" });
    this.changed();
  }

  status(state) {
    this.state = state;
    if (state !== "live") this.drafts.clear();
    this.changed();
  }

  // -- what is said

  // Kept here until the server has it: sent again under the same id, it is recognised.
  say(text) {
    const place = this.fresh ?? placeOf(this.sessions.get(this.open));
    this.outbox.push({ id: crypto.randomUUID(), agent: place.agent, chat: place.chat, text, session: this.open });
    keep(OUTBOX, this.outbox);
    this.changed();
    this.deliver();
  }

  async deliver() {
    if (this.delivering) return;
    this.delivering = true;
    try {
      for (let next; (next = this.outbox.find((message) => !message.refused && !message.sent)); ) {
        const { id, agent, chat, text } = next;
        try {
          const { session } = await this.post("/api/messages", { id, agent, chat, text });
          this.sent(next, session);
        } catch (error) {
          if (!error.status || error.status >= 500 || error.status === 429) return; // once we are back, or in a moment
          next.refused = error.message;
          keep(OUTBOX, this.outbox);
          this.changed();
        }
      }
    } finally {
      this.delivering = false;
      if (this.outbox.some((message) => !message.refused && !message.sent)) setTimeout(() => this.deliver(), 1000);
    }
  }

  sent(message, session) {
    message.sent = true;
    message.session = session;
    if (!this.sessions.has(session)) this.learn(session).catch(() => {});
    if (this.fresh?.chat === message.chat && this.fresh.agent === message.agent) this.show(session);
    const log = this.logs.get(session);
    if (log?.entries.some((entry) => entry.body?.origin?.message === message.id)) this.arrived(message.id, session);
    keep(OUTBOX, this.outbox);
    this.changed();
  }

  arrived(id, session) {
    const index = this.outbox.findIndex((message) => message.id === id);
    if (index < 0) return;
    const [message] = this.outbox.splice(index, 1);
    keep(OUTBOX, this.outbox);
    if (this.fresh?.chat === message.chat && this.fresh.agent === message.agent) this.show(session);
  }

  dismiss(id) {
    this.outbox = this.outbox.filter((message) => message.id !== id);
    keep(OUTBOX, this.outbox);
    this.changed();
  }

  waiting() {
    const place = this.fresh;
    return this.outbox.filter((message) =>
      place ? message.chat === place.chat && message.agent === place.agent : message.session === this.open,
    );
  }

  async stop() {
    await this.post(`/api/sessions/${this.open}/stop`, {}).catch(() => {});
  }
}

// Where a session happens, read from its address: agent:<agent>:<platform>:<kind>:<chat>[:thread:<thread>]…
export function placeOf(session) {
  const [, agent, platform, kind, chat, ...labels] = (session?.address ?? "").split(":").map(decodeURIComponent);
  const thread = labels[0] === "thread" ? labels[1] : "";
  return { agent, platform, kind, chat: thread || chat || "", person: thread ? chat : "" };
}

// A session's id begins with the time it was made.
export function bornAt(id) {
  return [...id.slice(0, 10)].reduce((sum, char) => sum * 32 + ALPHABET.indexOf(char), 0);
}

function recall(key) {
  try {
    return JSON.parse(sessionStorage.getItem(key));
  } catch {
    return null;
  }
}

function keep(key, value) {
  try {
    sessionStorage.setItem(key, JSON.stringify(value));
  } catch {
    // a full or forbidden storage only means that a reload forgets what was typed
  }
}
