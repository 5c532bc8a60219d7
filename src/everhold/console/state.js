// The state of the console: sessions, their logs, growing replies, and messages that are not committed yet.

const PAGE_SIZE = 400;
const OUTBOX_KEY = "everhold.outbox";
const ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz";

export class ConsoleState {
  constructor(changed, login) {
    this.changed = changed;
    this.login = login;
    this.connection = "connecting";
    this.caller = null;
    this.agents = [];
    this.sessions = new Map();
    this.logs = new Map();
    this.drafts = new Map();
    this.outbox = readStorage(OUTBOX_KEY) ?? [];
    this.openId = null; // the id of the open session
    this.newChat = null; // a conversation without a session yet: {agent, chat}
  }

  // -- requests

  async get(path) {
    const response = await this.login.fetch(path);
    if (!response.ok) throw Object.assign(new Error(path), { status: response.status });
    return response.json();
  }

  async post(path, body) {
    const response = await this.login.fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    const answer = await response.json();
    if (!response.ok) throw Object.assign(new Error(answer.error?.message ?? response.statusText), { answer, status: response.status });
    return answer;
  }

  // -- sessions

  async refresh() {
    const [caller, models, listed] = await Promise.all(["/api/me", "/v1/models", "/api/sessions?limit=200"].map((path) => this.get(path)));
    this.caller = caller;
    this.outbox = this.outbox.filter((message) => message.by === caller.name); // nobody sends the messages of another
    writeStorage(OUTBOX_KEY, this.outbox);
    this.agents = models.data.map((model) => model.id);
    for (const session of listed.sessions) this.updateSession(session);
    if (!this.openId && !this.newChat) {
      const wanted = readFragment();
      const own = this.listSessions().find((session) => this.isOwnChat(session));
      if (this.sessions.has(wanted)) this.openSession(wanted);
      else if (own) this.openSession(own.id);
      else this.startConversation();
    }
    if (this.openId) await this.loadEntries(this.openId);
    this.changed();
    this.deliverOutbox();
  }

  updateSession(session) {
    const before = this.sessions.get(session.id);
    const lastActivity = before?.lastActivity ?? getCreationTime(session.id);
    // a slow response may be older than the events that arrived before it
    const newest = before && before.last_seq > session.last_seq ? before : { ...session, busy: session.state === "turn" };
    this.sessions.set(session.id, { ...session, ...newest, lastActivity, firstText: before?.firstText });
  }

  async loadSession(id) {
    this.updateSession(await this.get(`/api/sessions/${id}`));
    this.changed();
  }

  // Whether the user of the console can send messages to this session.
  isOwnChat(session) {
    const { platform, kind, chat, person } = parseAddress(session);
    return platform === "http" && kind === "dm" && (person ? person === this.caller?.name : Boolean(chat && this.caller?.local));
  }

  listSessions() {
    return [...this.sessions.values()].sort((a, b) => b.lastActivity - a.lastActivity);
  }

  clearCache() {
    this.sessions.clear();
    this.logs.clear();
    this.drafts.clear();
    this.openId = null;
  }

  // The next person to log in may be another one.
  forgetCaller() {
    this.clearCache();
    this.newChat = null;
    this.caller = null;
  }

  // -- the open conversation

  startConversation(agent = this.agents.includes("main") ? "main" : this.agents[0]) {
    const taken = new Set([...this.sessions.values()].map((session) => parseAddress(session).chat));
    let number = 1;
    while (taken.has(`chat-${number}`)) number += 1;
    this.newChat = { agent, chat: `chat-${number}` };
    this.openId = null;
    history.replaceState(null, "", location.pathname);
    this.changed();
  }

  openSession(id) {
    this.openId = id;
    this.newChat = null;
    history.replaceState(null, "", `#${id}`);
    this.changed();
    return this.loadEntries(id).catch(() => {});
  }

  getLog(id = this.openId) {
    return this.logs.get(id) ?? { entries: [], before: 0 };
  }

  // Loads the entries after those that are known. The first time it loads only the end of a long log.
  async loadEntries(id) {
    let log = this.logs.get(id);
    if (!log) {
      const session = await this.get(`/api/sessions/${id}`);
      this.updateSession(session);
      log = { entries: [], before: Math.max(0, session.last_seq - PAGE_SIZE), filling: null };
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
      this.nameSession(id, log.entries[0]);
      this.changed();
    });
    return log.filling;
  }

  // A session without a title is listed under the text of its first message.
  nameSession(id, entry) {
    const known = this.sessions.get(id);
    if (known && entry?.seq === 1 && entry.kind === "heard") known.firstText = entry.body?.text;
  }

  async loadEarlier(id) {
    const log = this.getLog(id);
    const after = Math.max(0, log.before - PAGE_SIZE);
    const { entries } = await this.get(`/api/sessions/${id}/entries?after=${after}&limit=${log.before - after}`);
    log.entries.unshift(...entries);
    log.before = after;
    this.changed();
  }

  // -- events

  onHello(data, restored) {
    if (restored) this.clearCache(); // the store was restored from a backup, so the cached logs may be wrong
    this.refresh().catch(() => {});
  }

  onEntry(entry) {
    const { session, kind } = entry;
    const log = this.logs.get(session);
    if (log && !log.filling) {
      const last = log.entries.at(-1)?.seq ?? log.before;
      if (entry.seq === last + 1) log.entries.push(entry);
      else if (entry.seq > last) this.loadEntries(session).catch(() => {});
    } else if (log) log.again = true;
    const known = this.sessions.get(session);
    if (known) {
      known.lastActivity = entry.at * 1000;
      known.last_seq = entry.seq;
      this.nameSession(session, entry);
      if (kind === "began" && entry.body?.type === "turn") known.busy = true;
      if (kind === "ended") known.busy = false;
      if (kind === "changed" && entry.body?.change?.type === "session_titled") known.title = entry.body.change.title;
    } else this.loadSession(session).catch(() => {});
    if (["thought", "said", "ended"].includes(kind)) this.drafts.delete(session);
    if (kind === "heard") this.removeArrived(entry.body?.origin?.message, session);
    this.changed();
  }

  onDelta({ session, op, text }) {
    const draft = this.drafts.get(session);
    this.drafts.set(session, draft?.op === op ? { op, text: draft.text + text } : { op, text });
    this.changed();
  }

  onReset({ session, op }) {
    this.drafts.set(session, { op, text: "" });
    this.changed();
  }

  setConnection(state) {
    this.connection = state;
    if (state !== "live") this.drafts.clear();
    this.changed();
  }

  // -- messages

  // Keeps the message until the server has committed it. The server recognises a repeat by its id.
  sendMessage(text) {
    const target = this.newChat ?? parseAddress(this.sessions.get(this.openId));
    this.outbox.push({ id: crypto.randomUUID(), agent: target.agent, chat: target.chat, text, session: this.openId, by: this.caller.name });
    writeStorage(OUTBOX_KEY, this.outbox);
    this.changed();
    this.deliverOutbox();
  }

  async deliverOutbox() {
    if (this.delivering) return;
    this.delivering = true;
    try {
      for (let next; (next = this.outbox.find((message) => !message.refused && !message.sent)); ) {
        const { id, agent, chat, text } = next;
        try {
          const { session } = await this.post("/api/messages", { id, agent, chat, text });
          this.markSent(next, session);
        } catch (error) {
          if (!error.status || error.status >= 500 || error.status === 429 || error.status === 401) return; // it is sent again later
          next.refused = error.message;
          writeStorage(OUTBOX_KEY, this.outbox);
          this.changed();
        }
      }
    } finally {
      this.delivering = false;
      if (this.outbox.some((message) => !message.refused && !message.sent)) setTimeout(() => this.deliverOutbox(), 1000);
    }
  }

  markSent(message, session) {
    message.sent = true;
    message.session = session;
    if (!this.sessions.has(session)) this.loadSession(session).catch(() => {});
    if (this.newChat?.chat === message.chat && this.newChat.agent === message.agent) this.openSession(session);
    const log = this.logs.get(session);
    if (log?.entries.some((entry) => entry.body?.origin?.message === message.id)) this.removeArrived(message.id, session);
    writeStorage(OUTBOX_KEY, this.outbox);
    this.changed();
  }

  removeArrived(id, session) {
    const index = this.outbox.findIndex((message) => message.id === id);
    if (index < 0) return;
    const [message] = this.outbox.splice(index, 1);
    writeStorage(OUTBOX_KEY, this.outbox);
    if (this.newChat?.chat === message.chat && this.newChat.agent === message.agent) this.openSession(session);
  }

  dismissMessage(id) {
    this.outbox = this.outbox.filter((message) => message.id !== id);
    writeStorage(OUTBOX_KEY, this.outbox);
    this.changed();
  }

  listWaiting() {
    const target = this.newChat;
    return this.outbox.filter((message) =>
      target ? message.chat === target.chat && message.agent === target.agent : message.session === this.openId,
    );
  }

  // Pins an entry, or removes its pin. Returns why nothing changed; empty if something did.
  async changePin(seq, pinned) {
    try {
      const done = await this.post(`/api/sessions/${this.openId}/${pinned ? "pin" : "unpin"}`, { seq });
      return done.done ? "" : done.message;
    } catch (error) {
      return error.message;
    }
  }

  async stopTurn() {
    await this.post(`/api/sessions/${this.openId}/stop`, {}).catch(() => {});
  }
}

// Returns the fragment of the address, which anybody can write into a link.
export function readFragment() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

// Parses a session's address: agent:<agent>:<platform>:<kind>:<chat>[:thread:<thread>]…
export function parseAddress(session) {
  const [, agent, platform, kind, chat, ...labels] = (session?.address ?? "").split(":").map(decodeURIComponent);
  const thread = labels[0] === "thread" ? labels[1] : "";
  return { agent, platform, kind, chat: thread || chat || "", person: thread ? chat : "" };
}

// Returns the time in milliseconds with which a session's id begins.
export function getCreationTime(id) {
  return [...id.slice(0, 10)].reduce((sum, char) => sum * 32 + ALPHABET.indexOf(char), 0);
}

function readStorage(key) {
  try {
    return JSON.parse(sessionStorage.getItem(key));
  } catch {
    return null;
  }
}

function writeStorage(key, value) {
  try {
    sessionStorage.setItem(key, JSON.stringify(value));
  } catch {
    // without storage a reload loses the messages that are not sent yet
  }
}
