// Turns the entries of a log into the rows of a conversation.

import type { EntryView } from "../api/generated";
import { words } from "../words";

type Body = Record<string, any>;

export interface ToolCard {
  id: string;
  tool: string;
  arguments: Record<string, unknown>;
  effect: string;
  state: "asked" | "running" | "done" | "failed" | "unknown";
  result: string;
  files: Attachment[];
  seconds: number | null;
}

export interface Attachment {
  blob: string;
  name?: string;
  media?: string;
  size?: number;
}

export interface Row {
  key: string;
  kind: "person" | "agent" | "notice" | "failure" | "aside" | "tools";
  seq: number;
  op: number | null;
  at: number;
  text: string;
  author: string;
  pinned: boolean;
  undone: boolean;
  waiting: boolean; // no turn has taken it yet
  cards: ToolCard[];
  files: Attachment[];
  thought: number; // the model call that made an answer; 0: none is known
}

const FAILED = ["failed", "interrupted"];

export function listRows(entries: EntryView[]): Row[] {
  const facts = collectFacts(entries);
  const rows: Row[] = [];
  for (const entry of entries) {
    if (entry.kind === "thought" && entry.op !== null) facts.thoughts.set(entry.op, entry.seq);
    const row = buildRow(entry, facts);
    if (row) rows.push(row);
  }
  const waiting = rows.filter((row) => row.waiting);
  return waiting.length ? [...rows.filter((row) => !row.waiting), ...waiting] : rows;
}

interface Facts {
  undone: Set<number>;
  pinned: Set<number>;
  taken: Map<number, number>; // a heard entry -> the operation that took it
  cards: Map<string, ToolCard>; // op and call id -> its card
  failed: Map<number, string>; // operation -> the reason of its failure
  explained: Set<number>; // operations whose failure a notice explains
  thoughts: Map<number, number>; // operation -> its latest model call before the entry at hand
}

function collectFacts(entries: EntryView[]): Facts {
  const facts: Facts = { undone: new Set(), pinned: new Set(), taken: new Map(), cards: new Map(), failed: new Map(), explained: new Set(), thoughts: new Map() };
  const pins = new Map<number, number>(); // the seq of a pin -> the entry it pins
  for (const entry of entries) {
    const { kind, op, seq } = entry;
    const body = entry.body as Body | null;
    if (!body) continue;
    if (kind === "began" || kind === "took") for (const heard of body.takes ?? []) facts.taken.set(heard, op ?? seq);
    if (kind === "thought") for (const call of body.calls ?? []) facts.cards.set(`${op} ${call.id}`, buildCard(call));
    if (kind === "called" || kind === "returned") followCall(facts.cards.get(`${op} ${body.call}`), entry, body);
    if (kind === "notified" && op !== null) facts.explained.add(op);
    if (kind === "ended" && FAILED.includes(body.outcome)) facts.failed.set(op ?? seq, body.reason ?? "");
    if (kind === "changed" && body.change?.type === "entry_pinned" && !body.change.session) pins.set(seq, body.change.seq);
    if (kind === "changed" && body.change?.type === "operations_undone")
      for (const undone of body.change.ops) {
        facts.undone.add(undone);
        pins.delete(undone);
      }
  }
  facts.pinned = new Set(pins.values());
  return facts;
}

function buildCard(call: Body): ToolCard {
  return { id: call.id, tool: call.tool, arguments: call.arguments ?? {}, effect: "", state: "asked", result: "", files: [], seconds: null };
}

function followCall(card: (ToolCard & { began?: number }) | undefined, entry: EntryView, body: Body): void {
  if (!card) return;
  if (entry.kind === "called") {
    card.effect = body.effect;
    card.state = "running";
    card.began = entry.at;
  } else {
    card.state = body.unknown ? "unknown" : body.error ? "failed" : "done";
    card.result = body.text ?? "";
    card.files = [...(body.files ?? []), ...(body.attached ?? [])];
    card.seconds = card.began === undefined ? null : entry.at - card.began;
  }
}

function buildRow(entry: EntryView, facts: Facts): Row | null {
  const body = entry.body as Body | null;
  const taken = facts.taken.get(entry.seq);
  const op = entry.kind === "heard" ? (taken ?? null) : entry.op;
  const base = {
    key: String(entry.seq),
    seq: entry.seq,
    op,
    at: entry.at,
    author: entry.author.replace(/^person:(local:|http:)?/, ""),
    pinned: facts.pinned.has(entry.seq),
    undone: op !== null && facts.undone.has(op),
    waiting: false,
    cards: [] as ToolCard[],
    files: (body?.attachments ?? []) as Attachment[],
    thought: (op !== null && facts.thoughts.get(op)) || 0,
  };
  switch (entry.kind) {
    case "heard":
      return { ...base, kind: "person", text: body ? describeCommand(body) : words.log.erased, waiting: taken === undefined && body?.asks !== false && !!body };
    case "said":
      return { ...base, kind: "agent", text: body ? body.text : words.log.erased };
    case "notified":
      return body && { ...base, kind: op !== null && facts.failed.has(op) ? "failure" : "notice", text: body.text };
    case "thought": {
      const cards = (body?.calls ?? []).map((call: Body) => facts.cards.get(`${entry.op} ${call.id}`));
      return cards.length ? { ...base, kind: "tools", text: body?.text ?? "", cards } : null;
    }
    case "ended":
      return body && describeEnd(body, op, facts) ? { ...base, kind: "aside", text: describeEnd(body, op, facts) } : null;
    default: {
      const text = body ? describeAside(entry.kind, body) : "";
      return text ? { ...base, kind: "aside", text } : null;
    }
  }
}

// A failure is told once: by the notice that the person received, else by the end of the operation.
function describeEnd(body: Body, op: number | null, facts: Facts): string {
  if (body.outcome === "stopped") return words.log.stopped(body.reason ?? "");
  if (!FAILED.includes(body.outcome) || (op !== null && facts.explained.has(op))) return "";
  return words.log.failed(body.outcome, body.reason ?? "");
}

function describeAside(kind: string, body: Body): string {
  if (kind === "noted") return body.action === "remove" ? words.log.removes(body.text) : words.log.remembers(body.text);
  if (kind === "compressed") return words.log.compressed;
  if (kind !== "changed") return "";
  switch (body.change?.type) {
    case "context_reset":
      return words.log.newContext;
    case "operations_undone":
      return words.log.undone;
    case "session_titled":
      return words.log.titled(body.change.title);
    case "branched_from":
      return words.log.branched;
    case "entry_pinned":
      return words.log.pinnedEntry(body.change.seq);
    default:
      return "";
  }
}

function describeCommand(body: Body): string {
  return body.command ? `/${body.command.name} ${body.command.argument ?? ""}`.trim() : describeHeard(body);
}

// The sender's own words, then every forwarded, quoted or embedded text behind the line that names its author.
export function describeHeard(body: Body): string {
  const quoted = (body.pieces ?? []).map((piece: Body) => {
    const who = piece.own ? words.log.sender : [...new Set([piece.name, piece.by])].filter(Boolean).join(" ");
    const lines = (piece.text ?? "").split(/\r\n|[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]/);
    return [words.log.quoted(piece.source, who || words.log.unknownAuthor), ...lines.map((line: string) => `| ${line}`)].join("\n");
  });
  return [body.text, ...quoted].filter(Boolean).join("\n");
}
