// Renders a reply's Markdown as elements: paragraphs, lists, headings, tables, code, emphasis, links. HTML in it stays
// text. A remote picture is a link, because loading it would tell its server that it was read.

import type { ComponentChild } from "preact";
import { memo } from "../ui/memo";
import { CopyButton } from "../ui/copy";
import { words } from "../words";

const FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*).*$/;
const ITEM = /^(\s*)(?:[-*+•]|\d{1,3}[.)])\s+(.*)$/;
const HEADING = /^#{1,6}\s/;
const RULE = /^\s*([-*_])(?:\s*\1){2,}\s*$/;
const DELIMITER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const INLINE =
  /(`+)([^`]|[^`].*?[^`])\1(?!`)|\*\*(\S(?:.*?\S)?)\*\*|(?<![\w*])\*(\S(?:.*?\S)?)\*(?![\w*])|~~(\S(?:.*?\S)?)~~|!?\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>"')\]]+[^\s<>"')\].,;:!?])/;

export const Markdown = memo(({ text }: { text: string }) => <div class="text">{renderBlocks(text.split("\n"))}</div>);

function renderBlocks(lines: string[]): ComponentChild[] {
  const made: ComponentChild[] = [];
  for (let at = 0; at < lines.length; ) {
    const [block, next] = renderBlock(lines, at);
    if (block) made.push(block);
    at = next;
  }
  return made;
}

// Returns the block that begins at this line, and the line after it.
function renderBlock(lines: string[], at: number): [ComponentChild, number] {
  const line = lines[at] ?? "";
  const fence = FENCE.exec(line);
  if (fence) return renderCode(lines, at, fence[1] ?? "```");
  if (!line.trim()) return [null, at + 1];
  if (RULE.test(line)) return [<hr />, at + 1];
  if (ITEM.test(line)) return renderList(lines, at);
  if (isTable(lines, at)) return renderTable(lines, at);
  if (HEADING.test(line)) return [<p class="heading">{renderInline(line.replace(/^#+\s+/, ""))}</p>, at + 1];
  if (line.startsWith(">")) return renderQuote(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end]!.trim() && !startsBlock(lines, end)) end += 1;
  return [<p>{joinLines(lines.slice(at, end))}</p>, end];
}

function startsBlock(lines: string[], at: number): boolean {
  const line = lines[at] ?? "";
  return FENCE.test(line) || ITEM.test(line) || line.startsWith(">") || isTable(lines, at);
}

function joinLines(lines: string[]): ComponentChild[] {
  return lines.flatMap((line, index) => (index ? [<br />, renderInline(line)] : [renderInline(line)]));
}

function renderCode(lines: string[], at: number, mark: string): [ComponentChild, number] {
  let end = at + 1;
  while (end < lines.length && !lines[end]!.trim().startsWith(mark)) end += 1;
  const code = lines.slice(at + 1, end).join("\n");
  const block = (
    <div class="code">
      <CopyButton text={code} label={words.copyCode} />
      <pre tabIndex={0}>
        <code>{code}</code>
      </pre>
    </div>
  );
  return [block, end + 1];
}

function renderList(lines: string[], at: number): [ComponentChild, number] {
  const ordered = /^\s*\d/.test(lines[at] ?? "");
  const items: ComponentChild[] = [];
  for (let item; at < lines.length && (item = ITEM.exec(lines[at]!)); at += 1) items.push(<li>{renderInline(item[2] ?? "")}</li>);
  return [ordered ? <ol>{items}</ol> : <ul>{items}</ul>, at];
}

function renderQuote(lines: string[], at: number): [ComponentChild, number] {
  let end = at;
  while (end < lines.length && lines[end]!.startsWith(">")) end += 1;
  return [<blockquote>{joinLines(lines.slice(at, end).map((line) => line.replace(/^>\s?/, "")))}</blockquote>, end];
}

function isTable(lines: string[], at: number): boolean {
  const next = lines[at + 1] ?? "";
  return lines[at]!.includes("|") && next.includes("-") && DELIMITER.test(next);
}

function renderTable(lines: string[], at: number): [ComponentChild, number] {
  const head = splitCells(lines[at]!);
  let end = at + 2;
  while (end < lines.length && lines[end]!.trim() && lines[end]!.includes("|")) end += 1;
  const rows = lines.slice(at + 2, end).map(splitCells);
  const table = (
    <div class="table" tabIndex={0} role="group" aria-label={words.table}>
      <table>
        <thead>
          <tr>
            {head.map((cell) => (
              <th scope="col">{renderInline(cell)}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr>
              {head.map((_, column) => (
                <td>{renderInline(row[column] ?? "")}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
  return [table, end];
}

// Splits a table's row at its bars. A bar behind a backslash, or inside code, belongs to the cell.
function splitCells(line: string): string[] {
  const cells = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").match(/(?:\\\||`[^`]*`|[^|])+|(?<=\|)(?=\|)/g) ?? [];
  return cells.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function renderInline(text: string): ComponentChild[] {
  const made: ComponentChild[] = [];
  for (let found; text && (found = INLINE.exec(text)); text = text.slice(found.index + found[0].length)) {
    const [, , code, strong, soft, struck, label, link, bare] = found;
    made.push(text.slice(0, found.index));
    if (code !== undefined) made.push(<code>{code}</code>);
    else if (strong !== undefined) made.push(<strong>{renderInline(strong)}</strong>);
    else if (soft !== undefined) made.push(<em>{renderInline(soft)}</em>);
    else if (struck !== undefined) made.push(<s>{renderInline(struck)}</s>);
    else
      made.push(
        <a href={link ?? bare} target="_blank" rel="noopener noreferrer">
          {label ?? bare}
        </a>,
      );
  }
  made.push(text);
  return made;
}
