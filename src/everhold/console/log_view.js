// Shows the log of the open session, entry by entry.

import { html, useRef } from "./preact.js";
import { describeHeard, useFollow } from "./conversation.js";

const MAX_ENTRIES = 400;

export function LogView({ state }) {
  const entries = state.getLog().entries.slice(-MAX_ENTRIES);
  const end = useRef(null);
  const follow = useFollow(end, [entries.length, state.openId]);
  return html`
    <aside class="log" aria-label="Log">
      <h2>Log <span class="count">${state.getLog().entries.at(-1)?.seq ?? 0}</span></h2>
      <div class="scroll" ref=${follow} tabindex="0">
        ${!entries.length && html`<p class="hint">Each step is committed to this log before the next step starts.</p>`}
        <ol>
          ${entries.map((entry) => html`<${Line} key=${entry.seq} entry=${entry} />`)}
        </ol>
        <div ref=${end}></div>
      </div>
    </aside>
  `;
}

function Line({ entry }) {
  const at = new Date(entry.at * 1000);
  return html`<li class=${`kind-${entry.kind}`}>
    <details>
      <summary>
        <span class="seq">${entry.seq}</span>
        <span class="kind">${entry.kind}</span>
        <span class="gist">${summarizeEntry(entry)}</span>
        <time datetime=${at.toISOString()} title=${at.toLocaleString()}>${at.toLocaleTimeString([], { hourCycle: "h23" })}</time>
      </summary>
      <pre>${JSON.stringify(entry, null, 2)}</pre>
    </details>
  </li>`;
}

function summarizeEntry({ kind, body, op }) {
  if (body === null) return "erased";
  switch (kind) {
    case "heard":
      return describeHeard(body);
    case "said":
    case "notified":
      return body.text;
    case "noted":
      return body.action === "remove" ? `removes: ${body.text}` : body.text;
    case "began":
      return `${body.type} · takes ${body.takes?.join(", ") ?? "nothing"}`;
    case "took":
      return `takes ${body.takes?.join(", ") ?? ""}`;
    case "thought":
      return body.calls?.length ? `calls ${body.calls.map((call) => call.tool).join(", ")}` : body.text;
    case "called":
      return `${body.tool} · ${body.effect}`;
    case "returned":
      return body.text ?? "";
    case "ended":
      return `${body.outcome ?? "done"}${body.usage?.input ? ` · ${body.usage.input} in, ${body.usage.output ?? 0} out` : ""}`;
    case "compressed":
      return `covers up to ${body.covers}`;
    case "changed":
      return body.change?.type ?? "";
    default:
      return op ? `operation ${op}` : "";
  }
}
