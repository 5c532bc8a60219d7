"""Renders entries of the log as text, from the JSON of the API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from everhold.cli.render import CommandScreen, escape_control, format_one_line, format_time, measure_width

STYLES: Final = {
    "heard": ("cyan",), "said": ("green",), "notified": ("yellow",), "noted": ("blue",), "compressed": ("blue",),
    "erased": ("red",),
}  # fmt: skip


def summarize_entry(entry: dict[str, Any]) -> str:
    """Return the content of an entry on one line."""
    body = entry["body"]
    if body is None:
        return "(erased)"
    match entry["kind"]:
        case "heard":
            command = body.get("command")
            if command:
                return f"/{command['name']} {command.get('argument', '')}".strip()
            return _join_words(str(body["text"]), *map(_summarize_piece, body.get("pieces", ())))
        case "said" | "notified" | "noted":
            return str(body["text"])
        case "began":
            return _join_words(
                body["type"],
                _format_list("takes", body.get("takes")),
                _format_named("under compression", body.get("compression")),
            )
        case "took":
            return _join_words(
                _format_list("takes", body.get("takes")), _format_named("under compression", body.get("compression"))
            )
        case "thought":
            calls = ", ".join(call["tool"] for call in body.get("calls", ()))
            cut = "cut off" if body.get("finish") == "length" else ""
            return _join_words(body.get("model", ""), f"calls {calls}" if calls else "", cut, body.get("text", ""))
        case "called":
            return f"{body['tool']} ({body['effect']})"
        case "returned":
            mark = "unknown outcome" if body.get("unknown") else "error" if body.get("error") else ""
            return _join_words(mark, body.get("text", ""))
        case "ended":
            usage = body.get("usage", {})
            tokens = usage.get("input", 0) + usage.get("output", 0)
            return _join_words(
                body.get("outcome", "done"), body.get("reason", ""), f"{tokens:,} tokens" if tokens else ""
            )
        case "compressed":
            return _join_words(f"covers entries up to {body['covers']}", body["summary"])
        case "changed":
            change = dict(body["change"])
            what = change.pop("type")
            return _join_words(what, ", ".join(f"{key} {value}" for key, value in change.items()))
        case "erased":
            return _join_words(_format_list("entries", body["seqs"]), body.get("why", ""))
        case _:
            return str(body)


def _summarize_piece(piece: dict[str, Any]) -> str:
    return f"{describe_piece(piece)}: “{piece.get('text', '')}”"


def describe_piece(piece: dict[str, Any]) -> str:
    """Return where a forwarded, quoted or embedded text comes from, as far as the platform reported it."""
    name, by = piece.get("name", ""), piece.get("by", "")
    who = "sender" if piece.get("own") else " ".join(dict.fromkeys(part for part in (name, by) if part))
    return f"{piece['source']} from {who or 'an unknown author'}"


def _quote_pieces(body: dict[str, Any]) -> str:
    """Return the foreign texts of a message as Markdown quotes."""
    blocks = []
    for piece in body.get("pieces", ()):
        lines = [f"*{describe_piece(piece)}:*", *str(piece.get("text", "")).splitlines()]
        blocks.append("\n".join(f"> {line}" for line in lines))
    return "\n\n".join(blocks)


def _join_words(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _format_list(word: str, items: Any) -> str:
    return f"{word} {', '.join(map(str, items))}" if items else ""


def _format_named(word: str, item: Any) -> str:
    return f"{word} {item}" if item else ""


def format_entry(screen: CommandScreen, entry: dict[str, Any]) -> str:
    """Return an entry on one line: seq, time, operation, kind, author and content."""
    op = f"op {entry['op']}" if entry["op"] is not None else ""
    author = format_one_line(entry["author"].removeprefix("person:"), most=16)
    head = f"{entry['seq']:>5}  {format_time(entry['at'])}  {op:<7} {entry['kind']:<8} {author:<16} "
    room = max(20, screen.columns - measure_width(head)) if screen.columns else 0
    text = format_one_line(summarize_entry(entry), most=room)
    return screen.paint(head, "dim") + screen.paint(text, *STYLES.get(entry["kind"], ("dim",)))


def render_markdown(session: dict[str, Any], entries: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Yield the conversation as Markdown: messages, notices, notes and summaries."""
    yield f"# {escape_control(session['title'] or session['id'])}\n"
    yield f"Session `{session['id']}` of agent {session['agent']}, {session['address']}.\n"
    for entry in entries:
        body, kind = entry["body"], entry["kind"]
        who = entry["author"].removeprefix("person:").removeprefix("agent:")
        if kind in ("heard", "said", "notified", "noted", "compressed"):
            word = {"notified": " (notice)", "noted": " (remembered)", "compressed": " (summary)"}.get(kind, "")
            text = "*(erased)*" if body is None else body["summary" if kind == "compressed" else "text"]
            if kind == "heard" and body is not None and body.get("command"):
                text = f"`{summarize_entry(entry)}`"
            if kind == "heard" and body is not None and body.get("pieces"):
                text = f"{text}\n\n{_quote_pieces(body)}".strip()
            head = f"**{escape_control(who)}**{word} · {format_time(entry['at'])} · {entry['seq']}"
            yield f"{head}\n\n{escape_control(text)}\n"


def render_messages(entries: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yield the conversation in OpenAI's message format, in the order of the model's context.

    Undone and erased entries and those outside the conversation are left out. Compressed messages are included.
    """
    log = list(entries)
    undone = {
        op
        for entry in log
        if entry["kind"] == "changed" and entry["body"] and entry["body"]["change"]["type"] == "operations_undone"
        for op in entry["body"]["change"]["ops"]
    }
    turns = {e["seq"] for e in log if e["kind"] == "began" and e["body"] and e["body"]["type"] == "turn"} - undone
    heard = {entry["seq"]: entry for entry in log if entry["kind"] == "heard" and entry["body"]}
    for entry in log:
        body, op = entry["body"], entry["op"] if entry["kind"] != "began" else entry["seq"]
        if op not in turns or body is None:
            continue
        match entry["kind"]:
            case "began" | "took":
                for seq in body.get("takes", ()):
                    if seq in heard:
                        yield _make_user_message(heard[seq])
            case "thought":
                yield _make_assistant_message(body)
            case "returned":
                yield {"role": "tool", "tool_call_id": body["call"], "content": body.get("text", "")}


def _make_user_message(entry: dict[str, Any]) -> dict[str, Any]:
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", entry["author"].removeprefix("person:"))[:64]
    text = "\n\n".join(part for part in (entry["body"]["text"], _quote_pieces(entry["body"])) if part)
    return {"role": "user", "content": text, **({"name": name} if name else {})}


def _make_assistant_message(body: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["tool"], "arguments": json.dumps(call.get("arguments", {}), ensure_ascii=False)},
        }
        for call in body.get("calls", ())
    ]
    return {"role": "assistant", "content": body.get("text", ""), **({"tool_calls": calls} if calls else {})}
