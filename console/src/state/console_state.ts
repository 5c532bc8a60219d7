// What the console knows: the caller, the sessions of the list, their logs and growing replies. A component is drawn again
// when a signal changes that it has read. `revision` counts the changes of what is no signal itself, so methods that
// return such a thing read it. At most one redraw for each frame follows these changes.

import { signal } from "@preact/signals";
import { call } from "../api/client";
import type { ActiveSessionsResponse, CallerView, SessionView, TurnWaitView } from "../api/generated";
import { connection, type Delta, type LiveEntry } from "../live/event_stream";
import { buildLink, place, replacePlace } from "../router";
import { getCreationTime, parseAddress } from "./address";
import { type CachedLog, Logs } from "./logs";
import { Outbox, type UploadedFile } from "./outbox";

const PAGE_SIZE = 100;

export interface KnownSession extends SessionView {
  first: string; // its first words
  busy: boolean;
}

interface Draft {
  op: number;
  text: string;
}

export class ConsoleState {
  private readonly revision = signal(0);
  readonly caller = signal<CallerView | null>(null);
  readonly sessions = new Map<string, KnownSession>();
  readonly logs = new Logs((id) => this.onLogLoaded(id));
  private readonly drafts = new Map<string, Draft>();
  readonly outbox = new Outbox((message, session) => this.onSent(message, session));
  readonly listeners = new Set<(entry: LiveEntry | null) => void>();
  readonly agents = signal<string[]>([]);
  readonly openId = signal<string | null>(null);
  readonly newChat = signal<{ agent: string; chat: string } | null>(null); // a conversation without a session yet
  private drawn = false;

  changed(): void {
    if (this.drawn) return;
    this.drawn = true;
    const draw = () => {
      this.drawn = false;
      this.revision.value += 1;
    };
    // browsers draw no frames for a hidden tab, but it must be up to date when it is shown again
    if (document.hidden) setTimeout(draw);
    else requestAnimationFrame(draw);
  }

  // Makes the component that is being drawn follow the changes of what is not a signal.
  private follow(): void {
    this.revision.value;
  }

  getOpenLog(): CachedLog {
    this.follow();
    return this.logs.get(this.openId.value);
  }

  getOpenDraft(): Draft | undefined {
    this.follow();
    return this.openId.value ? this.drafts.get(this.openId.value) : undefined;
  }

  // -- sessions

  async refresh(): Promise<void> {
    const [caller, models, listed] = await Promise.all([
      call("GET /api/me"),
      call("GET /v1/models"),
      call("GET /api/sessions", { order: "active", limit: PAGE_SIZE }) as Promise<ActiveSessionsResponse>,
    ]);
    this.caller.value = caller;
    this.outbox.keepOnly(caller.name);
    this.agents.value = models.data.map((model) => model.id);
    for (const session of listed.sessions) this.update(session, session.first);
    await this.followPlace();
    if (this.openId.value) await this.logs.load(this.openId.value).catch(() => undefined);
    this.changed();
    void this.outbox.deliver();
  }

  // Opens the session that the address names, else an own one.
  async followPlace(): Promise<void> {
    const { page, parts } = place.value;
    const wanted = page === "session" ? (parts[0] ?? "") : "";
    if (wanted && wanted !== this.openId.value) {
      if (!this.sessions.has(wanted)) await this.loadSession(wanted).catch(() => undefined);
      if (this.sessions.has(wanted)) return this.open(wanted);
    }
    if (this.openId.value || this.newChat.value || (page !== "" && page !== "session")) return;
    const own = this.listSessions().find((session) => this.isOwnChat(session));
    if (own) this.open(own.id);
    else this.startConversation();
  }

  update(session: SessionView, first?: string): void {
    const before = this.sessions.get(session.id);
    // a slow response may be older than the events that arrived before it
    const newest = before && before.last_seq > session.last_seq ? before : { ...session, busy: session.state === "turn" };
    const at = Math.max(before?.at ?? 0, session.at || getCreationTime(session.id) / 1000);
    this.sessions.set(session.id, { ...session, ...newest, at, first: first || before?.first || "" });
    this.changed();
  }

  async loadSession(id: string): Promise<void> {
    this.update(await call("GET /api/sessions/{id}", { id }));
  }

  listSessions(): KnownSession[] {
    this.follow();
    return [...this.sessions.values()].filter((session) => !session.archived).sort((a, b) => b.at - a.at);
  }

  getOpen(): KnownSession | undefined {
    this.follow();
    return this.openId.value ? this.sessions.get(this.openId.value) : undefined;
  }

  // Whether the user of the console can send messages to this session.
  isOwnChat(session: SessionView | undefined): boolean {
    if (!session) return false;
    const { platform, kind, chat, person } = parseAddress(session.address);
    const caller = this.caller.value;
    return platform === "http" && kind === "dm" && (person ? person === caller?.name : Boolean(chat && caller?.local));
  }

  // Why the turn of a session waits. The stream does not say when that changes, so it is asked after each failure.
  async loadWait(id: string): Promise<TurnWaitView | null> {
    const session = await call("GET /api/sessions/{id}", { id });
    this.update(session);
    return session.waiting ?? null;
  }

  clearCache(): void {
    this.sessions.clear();
    this.logs.clear();
    this.drafts.clear();
    this.openId.value = null;
    this.changed();
  }

  // The next person to log in may be another one.
  forgetCaller(): void {
    this.clearCache();
    this.newChat.value = null;
    this.caller.value = null;
  }

  // -- the open conversation

  startConversation(agent: string = this.agents.value.includes("main") ? "main" : (this.agents.value[0] ?? "")): void {
    const taken = new Set([...this.sessions.values()].map((session) => parseAddress(session.address).chat));
    let number = 1;
    while (taken.has(`chat-${number}`)) number += 1;
    this.newChat.value = { agent, chat: `chat-${number}` };
    this.openId.value = null;
    replacePlace("");
    this.changed();
  }

  open(id: string): void {
    this.openId.value = id;
    this.newChat.value = null;
    const { page, parts } = place.value;
    if (page === "" || (page === "session" && parts[0] !== id)) replacePlace(buildLink("session", [id]));
    this.changed();
    void this.logs.load(id).catch(() => undefined);
  }

  private onLogLoaded(id: string): void {
    const log = this.logs.get(id);
    this.name(id, log.entries[0]);
    this.changed();
  }

  // A session without a title is listed under the text of its first message.
  private name(id: string, entry: { seq: number; kind: string; body: Record<string, unknown> | null } | undefined): void {
    const known = this.sessions.get(id);
    if (known && entry?.seq === 1 && entry.kind === "heard") known.first = String(entry.body?.text ?? "");
  }

  // -- events

  onHello(restored: boolean): void {
    if (restored) this.clearCache(); // the store was restored from a backup, so the cached logs may be wrong
    this.refresh().catch(() => undefined);
    this.tell(null);
  }

  onEntry(entry: LiveEntry): void {
    const { session, kind } = entry;
    this.logs.add(session, entry);
    const known = this.sessions.get(session);
    if (known) this.apply(known, entry);
    else void this.loadSession(session).catch(() => undefined);
    if (["thought", "said", "ended"].includes(kind)) this.drafts.delete(session);
    if (kind === "heard") this.onArrived(String((entry.body?.origin as { message?: string } | undefined)?.message), session);
    this.tell(entry);
    this.changed();
  }

  // A changed session is a new object, because a component with the same properties is not drawn again.
  private apply(before: KnownSession, entry: LiveEntry): void {
    const { kind, body } = entry;
    const known = { ...before, at: entry.at, last_seq: entry.seq };
    this.sessions.set(known.id, known);
    this.name(known.id, entry);
    if (kind === "began" && body?.type === "turn") known.busy = true;
    if (kind === "ended") known.busy = false;
    const change = kind === "changed" ? (body?.change as { type?: string; title?: string } | undefined) : undefined;
    if (change?.type === "session_titled") known.title = change.title ?? "";
  }

  onDelta({ session, op, text }: Delta): void {
    const draft = this.drafts.get(session);
    this.drafts.set(session, draft?.op === op ? { op, text: draft.text + text } : { op, text });
    this.changed();
  }

  onReset({ session, op }: { session: string; op: number }): void {
    this.drafts.set(session, { op, text: "" });
    this.changed();
  }

  onDisconnected(): void {
    this.drafts.clear();
    this.changed();
  }

  private tell(entry: LiveEntry | null): void {
    for (const listener of this.listeners) listener(entry);
  }

  // -- messages

  send(text: string, files: UploadedFile[]): void {
    const target = this.newChat.value ?? parseAddress(this.getOpen()?.address);
    const by = this.caller.value?.name ?? "";
    this.outbox.add({ agent: target.agent, chat: target.chat, text, files, session: this.openId.value, by });
  }

  private onSent(message: { id: string; agent: string; chat: string }, session: string): void {
    if (!this.sessions.has(session)) void this.loadSession(session).catch(() => undefined);
    if (this.isNewChat(message)) this.open(session);
    if (this.logs.has(session, message.id)) this.onArrived(message.id, session);
    this.changed();
  }

  private onArrived(id: string, session: string): void {
    const message = this.outbox.remove(id);
    if (message && this.isNewChat(message)) this.open(session);
  }

  private isNewChat({ agent, chat }: { agent: string; chat: string }): boolean {
    return this.newChat.value?.chat === chat && this.newChat.value.agent === agent;
  }

  listOutgoing() {
    const target = this.newChat.value;
    return this.outbox.messages.value.filter((message) =>
      target ? message.chat === target.chat && message.agent === target.agent : message.session === this.openId.value,
    );
  }

  get isLive(): boolean {
    return connection.value.state === "live";
  }
}

export const state = new ConsoleState();
