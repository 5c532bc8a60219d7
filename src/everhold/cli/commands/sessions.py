"""`everhold sessions`: the log, and the exact context of any turn."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from everhold.cli import entries
from everhold.cli.client import ApiClient
from everhold.cli.progress import waiting
from everhold.cli.reach import looking, patiently
from everhold.cli.render import Screen, ago, count, one_line, safe


def run(args: argparse.Namespace, screen: Screen) -> int:
    return asyncio.run(patiently(lambda: _run(args, screen)))


async def _run(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls:
        match args.action or "list":
            case "list":
                await _list(calls, screen, limit=args.limit if args.action else 50)
            case "show":
                await _show(calls, screen, args)
            case "context":
                await _context(calls, screen, args)
            case "compressions":
                await _list_compressions(calls, screen, args.id)
            case "diff":
                await _diff(calls, screen, args)
            case "search":
                return await _search(calls, screen, args)
            case "export":
                await _export(calls, screen, args)
    return 0


async def _list(calls: ApiClient, screen: Screen, *, limit: int) -> None:
    found = await calls.list_sessions(limit=limit)
    if screen.json:
        screen.show(found)
        return
    if not found["sessions"]:
        screen.note("There are no sessions yet. `everhold chat` begins one.")
        return
    now = time.time()
    rows = [
        (
            session["id"],
            one_line(session["agent"]),
            ago(now - session["at"]),
            f"{session['last_seq']:,}",
            _state(session),
            one_line(session["title"] or session["address"]),
        )
        for session in sorted(found["sessions"], key=lambda session: -session["at"])
    ]
    screen.table(("session", "agent", "last", "entries", "state", "title or address"), rows, styles=("bold",))


def _state(session: dict[str, Any]) -> str:
    return f"{session['state']}, {session['pending']} unread" if session["pending"] else str(session["state"])


async def _show(calls: ApiClient, screen: Screen, args: argparse.Namespace) -> None:
    session = await calls.find_session(args.id)
    found = calls.read_entries(session["id"], after=args.after)
    if screen.json:
        screen.show({"session": session, "entries": [entry async for entry in found]})
        return
    head(screen, session)
    async for entry in found:
        screen.say(entries.line(screen, entry))


def head(screen: Screen, session: dict[str, Any]) -> None:
    title = f" · {one_line(session['title'])}" if session["title"] else ""
    screen.say(f"{screen.paint(session['id'], 'bold')}{title} · {_state(session)} · {safe(session['address'])}")


async def _context(calls: ApiClient, screen: Screen, args: argparse.Namespace) -> None:
    found = await calls.show_context(args.id, at=args.at)
    if screen.json:
        screen.show(found)
        return
    request = found["request"]
    match found["exact"]:
        case None:
            verdict = "what the next turn would be shown"
        case True:
            verdict = screen.paint("exactly what was sent: the digest recorded then agrees", "green")
        case _:
            verdict = screen.paint(f"inexact: {found['reason']}", "yellow")
    screen.say(f"{screen.paint(found['session'], 'bold')} at {found['at']} · {verdict}")
    _block(screen, "system", "", request["system"])
    if request["tools"]:
        _block(screen, "tools", "", ", ".join(tool["name"] for tool in request["tools"]))
    for message in request["messages"]:
        text = message.get("text", "")
        for call in message.get("calls", ()):
            text += f"\n→ {call['tool']} {json.dumps(call.get('arguments', {}), ensure_ascii=False)}"
        _block(screen, message["role"], message.get("name", ""), text.strip())


def _block(screen: Screen, role: str, name: str, text: str) -> None:
    style = {"user": "cyan", "assistant": "green", "tool": "yellow"}.get(role, "dim")
    screen.say()
    screen.say(screen.paint(f"{role}{f' ({one_line(name)})' if name else ''}", style, "bold"))
    screen.say(safe(text))


async def _list_compressions(calls: ApiClient, screen: Screen, id: str) -> None:
    found = await calls.list_compressions(id)
    if screen.json:
        screen.show(found)
        return
    if not found["compressions"]:
        screen.note("Nothing has been compressed in this session.")
    for made in found["compressions"]:
        body = made["body"] or {}
        state = f"undone by entry {made['undone_at']}" if made["undone_at"] else "in force or covered by a later one"
        tokens = f"{body.get('tokens_before', 0):,} → {body.get('tokens_after', 0):,} tokens"
        name = screen.paint(f"compression {made['op']}", "bold")
        screen.say(
            f"{name} · all up to {body.get('covers', '?')} · {tokens} · {one_line(body.get('model', ''))} · {state}"
        )
        screen.say(safe(body.get("summary", "(erased)")))
        screen.say()


async def _diff(calls: ApiClient, screen: Screen, args: argparse.Namespace) -> None:
    found = await calls.show_compression_diff(args.id, compression=args.compression)
    if screen.json:
        screen.show(found)
        return
    screen.say(f"{screen.paint(found['session'], 'bold')} · compression {found['compression']}")
    for mark, style, side in (("-", "red", found["replaced"]), ("+", "green", found["by"])):
        for message in side:
            who = message.get("name") or message["role"]
            calls_ = "".join(f" → {call['tool']}" for call in message.get("calls", ()))
            for line in f"{who}: {message.get('text', '')}{calls_}".splitlines():
                screen.say(screen.paint(f"{mark} {safe(line)}", style))


async def _search(calls: ApiClient, screen: Screen, args: argparse.Namespace) -> int:
    async with waiting(screen, "searching"):
        found = await calls.search_entries(args.text, limit=args.limit)
    if screen.json:
        screen.show(found)
    else:
        before = ""
        for hit in found["hits"]:
            if hit["session"] != before:
                screen.say(screen.paint(hit["session"], "bold"))
                before = hit["session"]
            screen.say(entries.line(screen, hit))
        if not found["hits"]:
            screen.note(f"Nobody said {one_line(args.text)!r}.")
        elif len(found["hits"]) == args.limit:
            screen.note(f"{count(args.limit, 'hit')} shown; --limit shows more.")
    return 0 if found["hits"] else 1


async def _export(calls: ApiClient, screen: Screen, args: argparse.Namespace) -> None:
    session = await calls.find_session(args.id)
    found = calls.read_entries(session["id"])
    if args.format == "markdown" and not screen.json:
        for part in entries.markdown(session, [entry async for entry in found]):
            screen.say(part)
        return
    if args.format == "openai":
        for message in entries.messages([entry async for entry in found]):
            screen.say(json.dumps(message, ensure_ascii=False, separators=(",", ":")))
        return
    async for entry in found:
        screen.say(json.dumps({"session": session["id"], **entry}, ensure_ascii=False, separators=(",", ":")))
