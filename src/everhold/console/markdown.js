// Renders a reply's Markdown as elements: paragraphs, lists, headings, code, emphasis, links. HTML in it stays text.

import { html } from "./preact.js";

const FENCE = /^\s*(```|~~~)\s*([\w+-]*)\s*$/;
const ITEM = /^(\s*)(?:[-*+•]|\d{1,3}[.)])\s+(.*)$/;
const INLINE =
  /(`+)([^`]|[^`].*?[^`])\1(?!`)|\*\*(\S(?:.*?\S)?)\*\*|(?<![\w*])\*(\S(?:.*?\S)?)\*(?![\w*])|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>"')\]]+[^\s<>"')\].,;:!?])/;

export function Markdown({ text }) {
  return html`<div class="text">${renderBlocks(text)}</div>`;
}

function renderBlocks(text) {
  const made = [];
  const lines = text.split("\n");
  for (let at = 0; at < lines.length; ) {
    const fence = FENCE.exec(lines[at]);
    if (fence) {
      let end = at + 1;
      while (end < lines.length && lines[end].trim() !== fence[1]) end += 1;
      made.push(html`<pre><code>${lines.slice(at + 1, end).join("\n")}</code></pre>`);
      at = end + 1;
    } else if (ITEM.test(lines[at])) {
      const ordered = /^\s*\d/.test(lines[at]);
      const items = [];
      for (let item; at < lines.length && (item = ITEM.exec(lines[at])); at += 1) items.push(html`<li>${renderInline(item[2])}</li>`);
      made.push(ordered ? html`<ol>${items}</ol>` : html`<ul>${items}</ul>`);
    } else if (/^#{1,6}\s/.test(lines[at])) {
      made.push(html`<p class="heading">${renderInline(lines[at].replace(/^#+\s+/, ""))}</p>`);
      at += 1;
    } else if (!lines[at].trim()) {
      at += 1;
    } else {
      const start = at;
      while (at < lines.length && lines[at].trim() && !FENCE.test(lines[at]) && !ITEM.test(lines[at])) at += 1;
      made.push(html`<p>${lines.slice(start, at).flatMap((line, index) => (index ? [html`<br />`, renderInline(line)] : [renderInline(line)]))}</p>`);
    }
  }
  return made;
}

function renderInline(text) {
  const made = [];
  for (let found; text && (found = INLINE.exec(text)); text = text.slice(found.index + found[0].length)) {
    const [, , code, strong, soft, label, link, bare] = found;
    made.push(text.slice(0, found.index));
    if (code !== undefined) made.push(html`<code>${code}</code>`);
    else if (strong !== undefined) made.push(html`<strong>${renderInline(strong)}</strong>`);
    else if (soft !== undefined) made.push(html`<em>${renderInline(soft)}</em>`);
    else made.push(html`<a href=${link ?? bare} target="_blank" rel="noopener noreferrer">${label ?? bare}</a>`);
  }
  made.push(text);
  return made;
}
