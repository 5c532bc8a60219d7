"""`everhold memory`: what is remembered, why an answer was what it was, what could not be delivered, whom to forget."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from typing import Any

from everhold.cli.progress import waiting
from everhold.cli.reach import looking
from everhold.cli.render import Screen, ago, count, moment, one_line, safe
from everhold.errors import Misuse
from everhold.remote.client import Calls

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
                noted = await calls.note(args.session, args.text)
                _tell(screen, noted, f"noted as entry {noted['seq']} of session {noted['session']}")
            case "parked":
                await _parked(calls, screen)
            case "replay":
                return await _replay(calls, args, screen)
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


async def _status(calls: Calls, screen: Screen) -> int:
    found = await calls.memory_status()
    wrong = any(row["error"] or row["parked"] or not row["there"] for row in found["memories"])
    if screen.json:
        screen.show(found)
        return 1 if wrong else 0
    rows = [
        (
            one_line(row["agent"]),
            one_line(row["memory"]),
            "there" if row["there"] else "not there",
            f"{row['waiting']} since {ago(time.time() - row['since'])}" if row["since"] is not None else "nothing",
            str(row["parked"]),
            one_line(row["error"], most=60),
        )
        for row in found["memories"]
    ]
    screen.table(("agent", "memory", "", "waits", "parked", "last complaint"), rows, styles=("bold",))
    for row in found["memories"]:
        name = f"{one_line(row['memory'])} of {one_line(row['agent'])}"
        if row["handed_over"] is not None:
            screen.say(f"{name} is {row['delivery']}: {account(row['handed_over'], row['confirmed'])}")
        elif row["says"]:
            screen.say(f"{name}: {one_line(row['says'])}")
        if row["replaying"]:
            screen.say(f"{name}: {count(row['replaying'], 'item')} to be handed over again")
    for names in found["forgetting"]:
        screen.note(f"{one_line(names[0])} is not forgotten everywhere yet: it is tried again by itself.")
    return 1 if wrong else 0


def account(handed: int, seen: int) -> str:
    """What is known of a memory that never says what it kept, and what is not."""
    return f"{handed} handed over, {seen} confirmed by reading back, {handed - seen} unknown"


async def _search(calls: Calls, args: argparse.Namespace, screen: Screen) -> int:
    found = await calls.memory_search(args.text, agent=args.agent, person=args.person, limit=args.limit)
    if screen.json:
        screen.show(found)
    else:
        for item in found["memories"]:
            screen.say(f"{screen.paint(_where(item), 'dim')}\n  {one_line(item['text'], most=400)}")
        if not found["memories"]:
            screen.note(f"{found['agent']} remembers nothing like it for {one_line(found['person'])}.")
        for line in found["silent"]:
            screen.note(f"no answer: {one_line(line)}")
    return 0 if found["memories"] else 1


async def _why(calls: Calls, args: argparse.Namespace, screen: Screen) -> None:
    found = await calls.memory_why(args.session, at=args.at)
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
    if found.get("silent"):
        screen.say(f"no answer within {found.get('deadline', 0):g} s: {', '.join(map(one_line, found['silent']))}")
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


async def _parked(calls: Calls, screen: Screen) -> None:
    found = await calls.parked()
    if screen.json:
        screen.show(found)
        return
    if not found["parked"]:
        screen.note("Nothing is parked: everything was delivered, or still will be.")
        return
    rows = [
        (
            str(item["id"]),
            one_line(item["reader"]),
            f"{item['session']}:{item['seq']}",
            ago(time.time() - item["at"]),
            "may have arrived" if item["doubtful"] else "not delivered",
            one_line(item["reason"]),
        )
        for item in found["parked"]
    ]
    screen.table(("id", "lane", "entry", "since", "fate", "reason"), rows, styles=("bold",))
    screen.note("`everhold memory replay` sends them again.")


async def _replay(calls: Calls, args: argparse.Namespace, screen: Screen) -> int:
    if args.since is None:
        if args.dry_run or args.agent or not all(it.isdecimal() and int(it) > 0 for it in args.what):
            raise Misuse(
                "of a memory, since when?",
                remedy="everhold memory replay NAME --since 2h; parked items go by their numbers",
            )
        done = await calls.replay([int(it) for it in args.what])
        _tell(screen, done, f"{count(done['replayed'], 'item')} will be sent again")
        return 0 if done["replayed"] or not args.what else 1
    if len(args.what) != 1:
        raise Misuse("which memory?", remedy="everhold memory replay NAME --since 2h; `memory status` lists them")
    async with waiting(screen, "looking through every session"):
        found = await calls.memory_replay(args.what[0], since=args.since, agent=args.agent, really=not args.dry_run)
    if screen.json:
        screen.show(found)
        return 0
    name = one_line(found["memory"])
    if not found["items"]:
        screen.note(f"{name} was handed nothing since then.")
        return 0
    what = count(found["items"], "exchange or note", "exchanges and notes")
    span = f"handed over {moment(found['since'])} to {moment(found['until'])}"
    screen.say(f"{what} of {count(found['sessions'], 'session')}, {span}")
    screen.say(f"  {one_line(found['repeats'])}")
    if found["begun"]:
        screen.note(
            "They go again, in order. `everhold memory status` shows how many are left; a restart is no matter."
        )
    else:
        screen.note("Nothing was changed; without --dry-run they go again.")
    return 0


async def _backfill(calls: Calls, args: argparse.Namespace, screen: Screen) -> None:
    async with waiting(screen, "looking through every session"):
        found = await calls.memory_backfill(
            args.memory,
            agent=args.agent,
            since=args.since,
            until=args.until,
            per_minute=args.per_minute,
            really=args.yes,
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


async def _forget(calls: Calls, args: argparse.Namespace, screen: Screen) -> int:
    async with waiting(screen, "forgetting" if args.yes else "looking through every session"):
        found = await calls.memory_forget(args.person, really=args.yes)
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


async def _import(calls: Calls, args: argparse.Namespace, screen: Screen) -> None:
    path = os.path.abspath(os.path.expanduser(args.path))  # noqa: ASYNC240  # no file is touched
    made = await calls.memory_import(args.session, path=path, really=not args.dry_run)
    held = f"{count(made['facts'], 'fact')} and {count(made['notes'], 'note')} in {count(len(made['files']), 'file')}"
    new = f", {made['noted']} of them new" if made["done"] else "; nothing was changed"
    _tell(screen, made, f"{held} for session {made['session']}{new}")


async def _export(calls: Calls, args: argparse.Namespace, screen: Screen) -> int:
    to = os.path.abspath(os.path.expanduser(args.to))  # noqa: ASYNC240  # no file is touched
    async with waiting(screen, "reading every session"):
        made = await calls.memory_export(args.person, to=to)
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
