// Messages that the gateway has not committed yet. Each is kept until then, also across a reload and an outage. The
// server recognises a repeat by its id.

import { signal } from "@preact/signals";
import { ApiError, call } from "../api/client";
import { readStorage, writeStorage } from "./storage";

const KEY = "everhold.outbox";
const RETRY_MS = 1000;

export interface UploadedFile {
  id: string;
  name: string;
  size: number;
}

export interface OutgoingMessage {
  id: string;
  by: string; // the caller who wrote it
  agent: string;
  chat: string;
  text: string;
  files: UploadedFile[];
  session: string | null;
  sent?: boolean;
  refused?: string;
}

export class Outbox {
  readonly messages = signal<OutgoingMessage[]>(readStorage<OutgoingMessage[]>(KEY) ?? []);
  private delivering = false;

  constructor(private readonly onSent: (message: OutgoingMessage, session: string) => void) {}

  add(message: Omit<OutgoingMessage, "id">): void {
    this.write([...this.messages.value, { ...message, id: crypto.randomUUID() }]);
    void this.deliver();
  }

  // Nobody sends the messages of another.
  keepOnly(by: string): void {
    this.write(this.messages.value.filter((message) => message.by === by));
  }

  // Removes a message, because the log has it or its author gives it up.
  remove(id: string): OutgoingMessage | undefined {
    const found = this.messages.value.find((message) => message.id === id);
    if (found) this.write(this.messages.value.filter((message) => message !== found));
    return found;
  }

  async deliver(): Promise<void> {
    if (this.delivering) return;
    this.delivering = true;
    try {
      for (let next; (next = this.messages.value.find(isWaiting)); ) {
        const { id, agent, chat, text, files } = next;
        try {
          const { session } = await call("POST /api/messages", {}, { id, agent, chat, text, ...(files?.length && { files: files.map((file) => file.id) }) });
          this.change(id, { sent: true, session });
          this.onSent(next, session);
        } catch (error) {
          if (!(error instanceof ApiError) || isTemporary(error.status)) return; // it is sent again later
          this.change(id, { refused: error.message });
        }
      }
    } finally {
      this.delivering = false;
      if (this.messages.value.some(isWaiting)) setTimeout(() => void this.deliver(), RETRY_MS);
    }
  }

  private change(id: string, changes: Partial<OutgoingMessage>): void {
    this.write(this.messages.value.map((message) => (message.id === id ? { ...message, ...changes } : message)));
  }

  private write(messages: OutgoingMessage[]): void {
    this.messages.value = messages;
    writeStorage(KEY, messages);
  }
}

function isWaiting(message: OutgoingMessage): boolean {
  return !message.refused && !message.sent;
}

function isTemporary(status: number): boolean {
  return status === 0 || status >= 500 || status === 429 || status === 401;
}
