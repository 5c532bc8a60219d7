"""`everhold sessions`: lists and searches sessions, and shows their logs and contexts."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from everhold.cli import entries
from everhold.cli.client import ApiClient
from everhold.cli.connect import connect_for_reading, retry_if_gone
from everhold.cli.progress import show_waiting
from everhold.cli.render import CommandScreen, escape_control, format_count, format_duration, format_one_line


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(retry_if_gone(lambda: _run_command(args, screen)))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        match args.action or "list":
            case "list":
                await _list_sessions(calls, screen, limit=args.limit if args.action else 50)
            case "show":
                await _show_session(calls, screen, args)
            case "context":
                await _show_context(calls, screen, args)
            case "compressions":
                await _list_compressions(calls, screen, args.id)
            case "diff":
                await _diff_contexts(calls, screen, args)
            case "search":
                return await _search_sessions(calls, screen, args)
            case "export":
                await _export_session(calls, screen, args)
    return 0


async def _list_sessions(calls: ApiClient, screen: CommandScreen, *, limit: int) -> None:
    found = await calls.list_sessions(limit=limit)
    if screen.json:
        screen.print_json(found)
        return
    if not found["sessions"]:
        screen.print_note("There are no sessions yet. `everhold chat` starts one.")
        return
    now = time.time()
    rows = [
        (
            session["id"],
            format_one_line(session["agent"]),
            format_duration(now - session["at"]),
            f"{session['last_seq']:,}",
            _format_state(session),
            format_one_line(session["title"] or session["address"]),
        )
        for session in sorted(found["sessions"], key=lambda session: -session["at"])
    ]
    screen.print_table(("session", "agent", "last", "entries", "state", "title or address"), rows, styles=("bold",))


def _format_state(session: dict[str, Any]) -> str:
    return f"{session['state']}, {session['pending']} pending" if session["pending"] else str(session["state"])


async def _show_session(calls: ApiClient, screen: CommandScreen, args: argparse.Namespace) -> None:
    session = await calls.find_session(args.id)
    found = calls.read_entries(session["id"], after=args.after)
    if screen.json:
        screen.print_json({"session": session, "entries": [entry async for entry in found]})
        return
    print_header(screen, session)
    async for entry in found:
        screen.print_line(entries.format_entry(screen, entry))


def print_header(screen: CommandScreen, session: dict[str, Any]) -> None:
    title = f" · {format_one_line(session['title'])}" if session["title"] else ""
    screen.print_line(
        f"{screen.paint(session['id'], 'bold')}{title} · {_format_state(session)} · "
        f"{escape_control(session['address'])}"
    )


async def _show_context(calls: ApiClient, screen: CommandScreen, args: argparse.Namespace) -> None:
    found = await calls.show_context(args.id, at=args.at)
    if screen.json:
        screen.print_json(found)
        return
    request = found["request"]
    match found["exact"]:
        case None:
            verdict = "the context of the next turn"
        case True:
            verdict = screen.paint("exactly what was sent: the recorded digest matches", "green")
        case _:
            verdict = screen.paint(f"inexact: {found['reason']}", "yellow")
    screen.print_line(f"{screen.paint(found['session'], 'bold')} at {found['at']} · {verdict}")
    _print_block(screen, "system", "", request["system"])
    if request["tools"]:
        _print_block(screen, "tools", "", ", ".join(tool["name"] for tool in request["tools"]))
    for message in request["messages"]:
        text = message.get("text", "")
        for call in message.get("calls", ()):
            text += f"\n→ {call['tool']} {json.dumps(call.get('arguments', {}), ensure_ascii=False)}"
        _print_block(screen, message["role"], message.get("name", ""), text.strip())


def _print_block(screen: CommandScreen, role: str, name: str, text: str) -> None:
    style = {"user": "cyan", "assistant": "green", "tool": "yellow"}.get(role, "dim")
    screen.print_line()
    screen.print_line(screen.paint(f"{role}{f' ({format_one_line(name)})' if name else ''}", style, "bold"))
    screen.print_line(escape_control(text))


async def _list_compressions(calls: ApiClient, screen: CommandScreen, id: str) -> None:
    found = await calls.list_compressions(id)
    if screen.json:
        screen.print_json(found)
        return
    if not found["compressions"]:
        screen.print_note("Nothing has been compressed in this session.")
    for made in found["compressions"]:
        body = made["body"] or {}
        state = f"undone by entry {made['undone_at']}" if made["undone_at"] else "in use, or covered by a later one"
        tokens = f"{body.get('tokens_before', 0):,} → {body.get('tokens_after', 0):,} tokens"
        name = screen.paint(f"compression {made['op']}", "bold")
        screen.print_line(
            f"{name} · covers entries up to {body.get('covers', '?')} · {tokens} · "
            f"{format_one_line(body.get('model', ''))} · {state}"
        )
        screen.print_line(escape_control(body.get("summary", "(erased)")))
        screen.print_line()


async def _diff_contexts(calls: ApiClient, screen: CommandScreen, args: argparse.Namespace) -> None:
    found = await calls.show_compression_diff(args.id, compression=args.compression)
    if screen.json:
        screen.print_json(found)
        return
    screen.print_line(f"{screen.paint(found['session'], 'bold')} · compression {found['compression']}")
    for mark, style, side in (("-", "red", found["replaced"]), ("+", "green", found["by"])):
        for message in side:
            who = message.get("name") or message["role"]
            calls_ = "".join(f" → {call['tool']}" for call in message.get("calls", ()))
            for line in f"{who}: {message.get('text', '')}{calls_}".splitlines():
                screen.print_line(screen.paint(f"{mark} {escape_control(line)}", style))


async def _search_sessions(calls: ApiClient, screen: CommandScreen, args: argparse.Namespace) -> int:
    async with show_waiting(screen, "searching"):
        found = await calls.search_entries(args.text, limit=args.limit)
    if screen.json:
        screen.print_json(found)
    else:
        before = ""
        for hit in found["hits"]:
            if hit["session"] != before:
                screen.print_line(screen.paint(hit["session"], "bold"))
                before = hit["session"]
            screen.print_line(entries.format_entry(screen, hit))
        if not found["hits"]:
            screen.print_note(f"No entry contains {format_one_line(args.text)!r}.")
        elif len(found["hits"]) == args.limit:
            screen.print_note(f"{format_count(args.limit, 'hit')} shown; --limit shows more.")
    return 0 if found["hits"] else 1


async def _export_session(calls: ApiClient, screen: CommandScreen, args: argparse.Namespace) -> None:
    session = await calls.find_session(args.id)
    found = calls.read_entries(session["id"])
    if args.format == "markdown" and not screen.json:
        for part in entries.render_markdown(session, [entry async for entry in found]):
            screen.print_line(part)
        return
    if args.format == "openai":
        for message in entries.render_messages([entry async for entry in found]):
            screen.print_line(json.dumps(message, ensure_ascii=False, separators=(",", ":")))
        return
    async for entry in found:
        screen.print_line(json.dumps({"session": session["id"], **entry}, ensure_ascii=False, separators=(",", ":")))
