"""`everhold memory`: what is remembered, why an answer was what it was, what memories receive, whom to forget."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

from everhold.cli.client import ApiClient
from everhold.cli.progress import waiting
from everhold.cli.reach import looking
from everhold.cli.render import Screen, ago, count, moment, one_line, safe

_NOBODY = "Nothing in the log is theirs: is the name right? `everhold people list` shows who is known by name."


def run(args: argparse.Namespace, screen: Screen) -> int:
    return asyncio.run(_run(args, screen))


async def _run(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls:
        match args.action:
            case "status":
                return await _status(calls, screen)
            case "search":
                return await _search(calls, args, screen)
            case "why":
                await _why(calls, args, screen)
            case "note":
                noted = await calls.add_note(args.session, args.text)
                _tell(screen, noted, f"noted as entry {noted['seq']} of session {noted['session']}")
            case "resend":
                await _resend(calls, args, screen)
            case "backfill":
                await _backfill(calls, args, screen)
            case "forget":
                return await _forget(calls, args, screen)
            case "import":
                await _import(calls, args, screen)
            case "export":
                return await _export(calls, args, screen)
    return 0


def _tell(screen: Screen, answer: dict[str, object], text: str) -> None:
    if screen.json:
        screen.show(answer)
    else:
        screen.say(text)


# -- looking -----------------------------------------------------------------------------------------------------------


async def _status(calls: ApiClient, screen: Screen) -> int:
    found = await calls.show_memory_status()
    wrong = any(row["error"] or row["dead_letters"] or not row["there"] for row in found["memories"])
    if screen.json:
        screen.show(found)
        return 1 if wrong else 0
    rows = [
        (
            one_line(row["agent"]),
            one_line(row["memory"]),
            "there" if row["there"] else "not there",
            f"{row['waiting']} since {ago(time.time() - row['since'])}" if row["since"] is not None else "nothing",
            str(row["dead_letters"]),
            one_line(row["error"], most=60),
        )
        for row in found["memories"]
    ]
    screen.table(("agent", "memory", "", "backlog", "dead letters", "last error"), rows, styles=("bold",))
    for row in found["memories"]:
        name = f"{one_line(row['memory'])} of {one_line(row['agent'])}"
        if row["handed_over"] is not None:
            screen.say(f"{name} is {row['delivery']}: {account(row['handed_over'], row['confirmed'])}")
        elif row["says"]:
            screen.say(f"{name}: {one_line(row['says'])}")
        if row["replaying"]:
            screen.say(f"{name}: {count(row['replaying'], 'item')} to be sent again")
    for names in found["forgetting"]:
        screen.note(f"{one_line(names[0])} is not forgotten everywhere yet: it is tried again by itself.")
    return 1 if wrong else 0


def account(handed: int, seen: int) -> str:
    """What is known of a memory that never says what it kept, and what is not."""
    return f"{handed} handed over, {seen} confirmed by reading back, {handed - seen} unknown"


async def _search(calls: ApiClient, args: argparse.Namespace, screen: Screen) -> int:
    found = await calls.search_memory(args.text, agent=args.agent, person=args.person, limit=args.limit)
    if screen.json:
        screen.show(found)
    else:
        for item in found["memories"]:
            screen.say(f"{screen.paint(_where(item), 'dim')}\n  {one_line(item['text'], most=400)}")
        if not found["memories"]:
            screen.note(f"{found['agent']} remembers nothing like it for {one_line(found['person'])}.")
        for line in found["unavailable"]:
            screen.note(f"no answer: {one_line(line)}")
    return 0 if found["memories"] else 1


async def _why(calls: ApiClient, args: argparse.Namespace, screen: Screen) -> None:
    found = await calls.explain_answer(args.session, at=args.at)
    if screen.json:
        screen.show(found)
        return
    screen.say(screen.paint(f"session {found['session']}, entry {found['at']}", "bold"))
    for title, key in (("kept in mind", "facts"), ("recalled", "shown"), ("left out", "left_out")):
        for item in found.get(key, ()):
            reason = f" ({one_line(item['why_not'])})" if item.get("why_not") else ""
            text = one_line(item["text"], most=200) if item["text"] else "(erased)"
            screen.say(f"{title}{reason}: {screen.paint(_where(item), 'dim')}\n  {text}")
    if found.get("budget"):
        screen.say(f"room: {found.get('tokens', 0)} of {found['budget']} tokens used")
    if found.get("unavailable"):
        names = ", ".join(map(one_line, found["unavailable"]))
        screen.say(f"no answer within {found.get('deadline', 0):g} s: {names}")
    if not any(found.get(key) for key in ("facts", "shown", "left_out")):
        screen.note("Nothing was recalled.")


def _where(item: dict[str, Any]) -> str:
    person, kind = item.get("person", ""), item.get("kind", "")
    whose = f"reply to {person}" if kind == "reply" else " by ".join(part for part in (kind, person) if part)
    parts = [item["provider"], whose, moment(item["at"]) if item.get("at") else ""]
    if item.get("session"):
        parts.append(f"session {item['session']}" + (f", entry {item['seq']}" if item.get("seq") else ""))
    if item.get("origin"):
        parts.append(f"from {item['origin']}")
    return one_line(" · ".join(part for part in parts if part))


async def _resend(calls: ApiClient, args: argparse.Namespace, screen: Screen) -> None:
    async with waiting(screen, "looking through every session"):
        found = await calls.resend_to_memory(args.memory, since=args.since, agent=args.agent, dry_run=args.dry_run)
    if screen.json:
        screen.show(found)
        return
    name = one_line(found["memory"])
    if not found["items"]:
        screen.note(f"{name} has received nothing since then.")
        return
    what = count(found["items"], "exchange or note", "exchanges and notes")
    span = f"received {moment(found['since'])} to {moment(found['until'])}"
    screen.say(f"{what} of {count(found['sessions'], 'session')}, {span}")
    screen.say(f"  {one_line(found['repeats'])}")
    if found["begun"]:
        screen.note("They are sent again, in order. `everhold memory status` shows how many are left.")
    else:
        screen.note("Nothing was changed; without --dry-run they are sent again.")


async def _backfill(calls: ApiClient, args: argparse.Namespace, screen: Screen) -> None:
    async with waiting(screen, "looking through every session"):
        found = await calls.backfill_memory(
            args.memory,
            agent=args.agent,
            since=args.since,
            until=args.until,
            per_minute=args.per_minute,
            dry_run=not args.yes,
        )
    if screen.json:
        screen.show(found)
        return
    if not found["items"]:
        screen.note(f"{one_line(found['memory'])} has been handed everything there is.")
        return
    what = count(found["items"], "exchange or note", "exchanges and notes")
    span = f"{moment(found['since'])} to {moment(found['until'])}"
    screen.say(f"{what} of {count(found['sessions'], 'session')}, {span}")
    takes = f"about {found['tokens']} tokens of text, {found['minutes']:g} minutes"
    screen.say(f"  {count(found['requests'], 'hand-over')}, {takes}")
    if found["begun"]:
        screen.note("Begun. `everhold logs -f` shows memory.backfilled; a restart does not interrupt it.")
    else:
        screen.note("What a token costs there, the service says. Nothing was changed; --yes begins.")


# -- a person ----------------------------------------------------------------------------------------------------------


async def _forget(calls: ApiClient, args: argparse.Namespace, screen: Screen) -> int:
    async with waiting(screen, "forgetting" if args.yes else "looking through every session"):
        found = await calls.forget_person(args.person, dry_run=not args.yes)
    if screen.json:
        screen.show(found)
        return 0 if found["done"] or not args.yes else 1
    verb = "erased" if args.yes else "would be erased"
    screen.say(f"{screen.paint(one_line(', '.join(found['names'])), 'bold')}: {verb}")
    for going in found["sessions"]:
        whole = "all of it" if going["alone"] else "their part"
        more = f", {going['repeated']} of them said to others" if going["repeated"] else ""
        screen.say(f"  session {going['session']} ({going['agent']}), {whole}: {_entries(len(going['seqs']))}{more}")
    screen.say(f"  {_entries(found['entries'])} in all, {count(found['recalls'], 'record')} of what models were shown")
    if found["schedules"]:
        screen.say(f"  {count(found['schedules'], 'schedule')} of theirs")
    for reach in found["providers"]:
        done = f"{reach['deleted']} deleted" if reach["deleted"] else "has nothing of it"
        fate = done if args.yes else "is asked to delete"
        can = fate if reach["can"] else "cannot delete"
        screen.say(f"  {one_line(reach['memory'])} (agent {one_line(reach['agent'])}): {can}")
    screen.say("stays:")
    for line in found["remains"]:
        screen.say(f"  {safe(line)}")
    if not found["entries"] and not found["schedules"]:
        screen.note(_NOBODY)
    if not args.yes:
        screen.note(f"Nothing was changed. `everhold memory forget {one_line(args.person)} --yes` does it, for good.")
    elif not found["done"]:
        screen.note("Not everybody has confirmed. It goes on by itself; the same command tries at once.")
    return 0 if found["done"] or not args.yes else 1


def _entries(number: int) -> str:
    return count(number, "entry", "entries")


async def _import(calls: ApiClient, args: argparse.Namespace, screen: Screen) -> None:
    from everhold.papers import read

    files = await asyncio.to_thread(lambda: read(Path(args.path).expanduser()))
    made = await calls.import_memory_files(args.session, files, dry_run=args.dry_run)
    held = f"{count(made['facts'], 'fact')} and {count(made['notes'], 'note')} in {count(len(made['files']), 'file')}"
    new = f", {made['noted']} of them new" if made["done"] else "; nothing was changed"
    _tell(screen, made, f"{held} for session {made['session']}{new}")


async def _export(calls: ApiClient, args: argparse.Namespace, screen: Screen) -> int:
    from everhold.papers import write_down, write_memory_files

    to = Path(os.path.abspath(os.path.expanduser(args.to)))  # noqa: ASYNC240  # no file is touched
    async with waiting(screen, "reading every session"), aclosing(calls.export_person(args.person)) as records:
        files = await calls.show_memory_files(args.person)  # a name that is none is refused before a file is made
        made = await write_down(records, args.person, to)
        made["files"] += write_memory_files(files, to)
    known = bool(made["files"])
    if screen.json:
        screen.show(made)
        return 0 if known else 1
    screen.say(f"{count(made['records'], 'record')} of {one_line(made['person'])}")
    for path in made["files"]:
        screen.say(f"  {safe(path)}")
    for line in made["missing"]:
        screen.note(f"missing: {one_line(line)}")
    if not known:
        screen.note(_NOBODY)
    return 0 if known else 1
