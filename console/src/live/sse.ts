// Reads a stream of server-sent events, event by event, until it ends.

import { login } from "../login/login";

export interface SentEvent {
  event: string;
  id: string;
  data: any;
}

export interface StreamOptions {
  headers?: Record<string, string>;
  signal: AbortSignal;
  onStarted?: () => void;
  onAlive?: () => void; // something arrived, perhaps a heartbeat
  onEvent: (event: SentEvent) => void;
}

// Returns the status of a refused request, else 0.
export async function readStream(path: string, { headers = {}, signal, onStarted, onAlive, onEvent }: StreamOptions): Promise<number> {
  const response = await login.fetch(path, { headers, signal });
  if (!response.ok || !response.body) return response.status;
  onStarted?.();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return 0;
    onAlive?.();
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const event = parseEvent(block);
      if (event) onEvent(event);
    }
  }
}

function parseEvent(block: string): SentEvent | null {
  const fields: Record<string, string> = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
  }
  return fields.data ? { event: fields.event ?? "message", id: fields.id ?? "", data: JSON.parse(fields.data) } : null;
}
