// Reads /api/events. It reconnects with the pos of the last entry, so that no entry is missed.

import { signal } from "@preact/signals";
import type { EntryView } from "../api/generated";
import { login } from "../login/login";
import { readStream, type SentEvent } from "./sse";

const MIN_WAIT_MS = 300;
const MAX_WAIT_MS = 4000;
const SILENCE_MS = 40_000; // the server sends a heartbeat every 15 seconds

export type LiveEntry = EntryView & { session: string };
export type Delta = { session: string; op: number; at: number; text: string };
export type ConnectionState = "connecting" | "live" | "offline" | "denied";

export interface EventHandlers {
  entry(entry: LiveEntry): void;
  delta(delta: Delta): void;
  reset(reset: { session: string; op: number }): void;
  // `restored`: the store is older than what this page has seen, because a backup was restored
  hello(restored: boolean): void;
}

export const connection = signal<{ state: ConnectionState; since: number }>({ state: "connecting", since: Date.now() });

export class EventStream {
  private lastPos: number | null = null; // of the last entry received
  private retryNow = () => {};
  private abort = new AbortController();

  constructor(private readonly handlers: EventHandlers) {}

  // Connects again, because the login has changed.
  restart(): void {
    this.abort.abort();
    this.retryNow();
  }

  async run(): Promise<never> {
    const retry = () => this.retryNow();
    addEventListener("online", retry);
    document.addEventListener("visibilitychange", retry);
    for (let wait = MIN_WAIT_MS; ; wait = Math.min(wait * 2, MAX_WAIT_MS)) {
      let status = login.state.value === "in" ? 0 : 401;
      if (!status) status = await this.readEvents(() => (wait = MIN_WAIT_MS)).catch(() => 0);
      setConnection(status === 401 || status === 403 ? "denied" : "offline");
      await new Promise<void>((done) => {
        this.retryNow = done;
        setTimeout(done, wait);
      });
    }
  }

  // Handles events until the stream ends. Returns the status of a refused request, else 0.
  private async readEvents(onStarted: () => void): Promise<number> {
    const abort = (this.abort = new AbortController());
    let timer = 0;
    const restartTimer = () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), SILENCE_MS) as unknown as number;
    };
    try {
      restartTimer();
      const headers: Record<string, string> = this.lastPos === null ? {} : { "Last-Event-ID": String(this.lastPos) };
      const path = "/api/events";
      return await readStream(path, { headers, signal: abort.signal, onStarted, onAlive: restartTimer, onEvent: (event) => this.handle(event) });
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }

  private handle({ event, id, data }: SentEvent): void {
    if (event === "hello") {
      const restored = this.lastPos !== null && data.end < this.lastPos;
      this.lastPos = data.pos;
      setConnection("live");
      this.handlers.hello(restored);
      return;
    }
    if (event === "entry") this.handlers.entry(data);
    else if (event === "delta") this.handlers.delta(data);
    else if (event === "reset") this.handlers.reset(data);
    if (id) this.lastPos = Number(id);
  }
}

function setConnection(state: ConnectionState): void {
  if (connection.value.state !== state) connection.value = { state, since: Date.now() };
}
