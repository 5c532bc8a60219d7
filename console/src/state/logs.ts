// The cached logs: for each session a part of its log without gaps, which ends at its last entry.

import { call } from "../api/client";
import type { EntryView } from "../api/generated";

const PAGE_SIZE = 400;

export interface CachedLog {
  entries: EntryView[];
  before: number; // the seq before the first cached entry; 0: the log is complete
  filling: Promise<void> | null;
  again: boolean;
}

const EMPTY: CachedLog = { entries: [], before: 0, filling: null, again: false };

export class Logs {
  private readonly logs = new Map<string, CachedLog>();

  constructor(private readonly onLoaded: (session: string) => void) {}

  get(session: string | null): CachedLog {
    return (session && this.logs.get(session)) || EMPTY;
  }

  clear(): void {
    this.logs.clear();
  }

  // Whether the cache has the entry of this message.
  has(session: string, message: string): boolean {
    return this.get(session).entries.some((entry) => (entry.body?.origin as { message?: string } | undefined)?.message === message);
  }

  // Adds an entry of the event stream. A log with a gap before it is loaded.
  add(session: string, entry: EntryView): void {
    const log = this.logs.get(session);
    if (!log) return;
    if (log.filling) {
      log.again = true;
      return;
    }
    const last = getLast(log);
    if (entry.seq === last + 1) log.entries.push(entry);
    else if (entry.seq > last) void this.load(session).catch(() => undefined);
  }

  // Loads the entries after those that are known. The first time it loads only the end of a long log.
  async load(session: string): Promise<void> {
    let log = this.logs.get(session);
    if (!log) {
      const { last_seq } = await call("GET /api/sessions/{id}", { id: session });
      log = this.logs.get(session) ?? { entries: [], before: Math.max(0, last_seq - PAGE_SIZE), filling: null, again: false };
      this.logs.set(session, log);
    }
    if (log.filling) log.again = true;
    else log.filling = this.fill(session, log);
    await log.filling;
  }

  private async fill(session: string, log: CachedLog): Promise<void> {
    try {
      do {
        log.again = false;
        const { entries } = await call("GET /api/sessions/{id}/entries", { id: session, after: getLast(log) });
        const last = getLast(log);
        log.entries.push(...entries.filter((entry) => entry.seq > last));
      } while (log.again);
    } finally {
      log.filling = null;
      this.onLoaded(session);
    }
  }

  async loadEarlier(session: string): Promise<void> {
    const log = this.get(session);
    const after = Math.max(0, log.before - PAGE_SIZE);
    const { entries } = await call("GET /api/sessions/{id}/entries", { id: session, after, limit: log.before - after });
    log.entries.unshift(...entries);
    log.before = after;
    this.onLoaded(session);
  }
}

function getLast(log: CachedLog): number {
  return log.entries.at(-1)?.seq ?? log.before;
}
