"""`everhold memory`: searches and explains memory, sends history to memories, and forgets or exports a person."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

from everhold.cli.client import ApiClient
from everhold.cli.connect import connect_for_reading
from everhold.cli.progress import show_waiting
from everhold.cli.render import (
    CommandScreen,
    escape_control,
    format_count,
    format_duration,
    format_one_line,
    format_time,
)

_UNKNOWN_PERSON_TEXT = (
    "The log has no entries of this person. Is the name right? `everhold people list` shows the known people."
)


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_run_command(args, screen))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        match args.action:
            case "status":
                return await _print_status(calls, screen)
            case "search":
                return await _search_memory(calls, args, screen)
            case "why":
                await _explain_answer(calls, args, screen)
            case "note":
                noted = await calls.add_note(args.session, args.text)
                _print_answer(screen, noted, f"noted as entry {noted['seq']} of session {noted['session']}")
            case "resend":
                await _resend_to_memory(calls, args, screen)
            case "backfill":
                await _start_backfill(calls, args, screen)
            case "forget":
                return await _forget_person(calls, args, screen)
            case "import":
                await _import_facts(calls, args, screen)
            case "export":
                return await _export_memory(calls, args, screen)
    return 0


def _print_answer(screen: CommandScreen, answer: dict[str, object], text: str) -> None:
    if screen.json:
        screen.print_json(answer)
    else:
        screen.print_line(text)


# -- queries -----------------------------------------------------------------------------------------------------------


async def _print_status(calls: ApiClient, screen: CommandScreen) -> int:
    found = await calls.show_memory_status()
    wrong = any(row["error"] or row["dead_letters"] or not row["there"] for row in found["memories"])
    if screen.json:
        screen.print_json(found)
        return 1 if wrong else 0
    rows = [
        (
            format_one_line(row["agent"]),
            format_one_line(row["memory"]),
            "available" if row["there"] else "not available",
            f"{row['waiting']} since {format_duration(time.time() - row['since'])}"
            if row["since"] is not None
            else "nothing",
            str(row["dead_letters"]),
            format_one_line(row["error"], most=60),
        )
        for row in found["memories"]
    ]
    screen.print_table(("agent", "memory", "", "backlog", "dead letters", "last error"), rows, styles=("bold",))
    for row in found["memories"]:
        name = f"{format_one_line(row['memory'])} of {format_one_line(row['agent'])}"
        if row["handed_over"] is not None:
            screen.print_line(
                f"{name} is {row['delivery']}: {describe_unacknowledged(row['handed_over'], row['confirmed'])}"
            )
        elif row["says"]:
            screen.print_line(f"{name}: {format_one_line(row['says'])}")
        if row["replaying"]:
            screen.print_line(f"{name}: {format_count(row['replaying'], 'item')} to be sent again")
    for names in found["forgetting"]:
        screen.print_note(f"{format_one_line(names[0])} is not forgotten by all memories yet. everhold tries again.")
    return 1 if wrong else 0


def describe_unacknowledged(handed: int, seen: int) -> str:
    """Describe what is known about a memory that does not acknowledge writes."""
    return f"{handed} sent, {seen} confirmed by reading back, {handed - seen} unknown"


async def _search_memory(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> int:
    found = await calls.search_memory(args.text, agent=args.agent, person=args.person, limit=args.limit)
    if screen.json:
        screen.print_json(found)
    else:
        for item in found["memories"]:
            screen.print_line(
                f"{screen.paint(_format_location(item), 'dim')}\n  {format_one_line(item['text'], most=400)}"
            )
        if not found["memories"]:
            screen.print_note(f"{found['agent']} found nothing for {format_one_line(found['person'])}.")
        for line in found["unavailable"]:
            screen.print_note(f"no answer: {format_one_line(line)}")
    return 0 if found["memories"] else 1


async def _explain_answer(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> None:
    found = await calls.explain_answer(args.session, at=args.at)
    if screen.json:
        screen.print_json(found)
        return
    screen.print_line(screen.paint(f"session {found['session']}, entry {found['at']}", "bold"))
    for title, key in (("fact", "facts"), ("recalled", "shown"), ("left out", "left_out")):
        for item in found.get(key, ()):
            reason = f" ({format_one_line(item['why_not'])})" if item.get("why_not") else ""
            text = format_one_line(item["text"], most=200) if item["text"] else "(erased)"
            screen.print_line(f"{title}{reason}: {screen.paint(_format_location(item), 'dim')}\n  {text}")
    if found.get("budget"):
        screen.print_line(f"recall budget: {found.get('tokens', 0)} of {found['budget']} tokens used")
    if found.get("unavailable"):
        names = ", ".join(map(format_one_line, found["unavailable"]))
        screen.print_line(f"no answer within {found.get('deadline', 0):g} s: {names}")
    if not any(found.get(key) for key in ("facts", "shown", "left_out")):
        screen.print_note("Nothing was recalled.")


def _format_location(item: dict[str, Any]) -> str:
    person, kind = item.get("person", ""), item.get("kind", "")
    whose = f"reply to {person}" if kind == "reply" else " by ".join(part for part in (kind, person) if part)
    parts = [item["provider"], whose, format_time(item["at"]) if item.get("at") else ""]
    if item.get("session"):
        parts.append(f"session {item['session']}" + (f", entry {item['seq']}" if item.get("seq") else ""))
    if item.get("origin"):
        parts.append(f"from {item['origin']}")
    return format_one_line(" · ".join(part for part in parts if part))


async def _resend_to_memory(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> None:
    async with show_waiting(screen, "looking through every session"):
        found = await calls.resend_to_memory(args.memory, since=args.since, agent=args.agent, dry_run=args.dry_run)
    if screen.json:
        screen.print_json(found)
        return
    name = format_one_line(found["memory"])
    if not found["items"]:
        screen.print_note(f"{name} has received nothing since then.")
        return
    what = format_count(found["items"], "exchange or note", "exchanges and notes")
    span = f"received {format_time(found['since'])} to {format_time(found['until'])}"
    screen.print_line(f"{what} of {format_count(found['sessions'], 'session')}, {span}")
    screen.print_line(f"  {format_one_line(found['repeats'])}")
    if found["begun"]:
        screen.print_note("They are sent again, in order. `everhold memory status` shows how many are left.")
    else:
        screen.print_note("Nothing was changed. Repeat it without --dry-run to send them again.")


async def _start_backfill(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> None:
    async with show_waiting(screen, "looking through every session"):
        found = await calls.backfill_memory(
            args.memory,
            agent=args.agent,
            since=args.since,
            until=args.until,
            per_minute=args.per_minute,
            dry_run=not args.yes,
        )
    if screen.json:
        screen.print_json(found)
        return
    if not found["items"]:
        screen.print_note(f"{format_one_line(found['memory'])} has received the complete history.")
        return
    what = format_count(found["items"], "exchange or note", "exchanges and notes")
    span = f"{format_time(found['since'])} to {format_time(found['until'])}"
    screen.print_line(f"{what} of {format_count(found['sessions'], 'session')}, {span}")
    takes = f"about {found['tokens']} tokens of text, {found['minutes']:g} minutes"
    screen.print_line(f"  {format_count(found['requests'], 'request')}, {takes}")
    if found["begun"]:
        screen.print_note("Started. `everhold logs -f` shows memory.backfilled. It resumes after a restart.")
    else:
        screen.print_note("The price of a token depends on the service. Nothing was changed; --yes starts it.")


# -- a person ----------------------------------------------------------------------------------------------------------


async def _forget_person(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> int:
    async with show_waiting(screen, "forgetting" if args.yes else "looking through every session"):
        found = await calls.forget_person(args.person, dry_run=not args.yes)
    if screen.json:
        screen.print_json(found)
        return 0 if found["done"] or not args.yes else 1
    verb = "erased" if args.yes else "would be erased"
    screen.print_line(f"{screen.paint(format_one_line(', '.join(found['names'])), 'bold')}: {verb}")
    for going in found["sessions"]:
        whole = "all entries" if going["alone"] else "the person's entries"
        more = f", {going['repeated']} of them in replies to others" if going["repeated"] else ""
        screen.print_line(
            f"  session {going['session']} ({going['agent']}), {whole}: {_format_entries(len(going['seqs']))}{more}"
        )
    screen.print_line(
        f"  {_format_entries(found['entries'])} in total, {format_count(found['recalls'], 'recall record')}"
    )
    if found["schedules"]:
        screen.print_line(f"  {format_count(found['schedules'], 'schedule')} of this person")
    for reach in found["providers"]:
        done = f"{reach['deleted']} deleted" if reach["deleted"] else "had no data"
        fate = done if args.yes else "is asked to delete"
        can = fate if reach["can"] else "cannot delete"
        screen.print_line(f"  {format_one_line(reach['memory'])} (agent {format_one_line(reach['agent'])}): {can}")
    screen.print_line("stays:")
    for line in found["remains"]:
        screen.print_line(f"  {escape_control(line)}")
    if not found["entries"] and not found["schedules"]:
        screen.print_note(_UNKNOWN_PERSON_TEXT)
    if not args.yes:
        screen.print_note(
            f"Nothing was changed. `everhold memory forget {format_one_line(args.person)} --yes` erases it. "
            "This cannot be undone."
        )
    elif not found["done"]:
        screen.print_note("Not all memories have confirmed. everhold tries again; the same command tries at once.")
    return 0 if found["done"] or not args.yes else 1


def _format_entries(number: int) -> str:
    return format_count(number, "entry", "entries")


async def _import_facts(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> None:
    from everhold.admin.memory_files import read_memory_files

    files = await asyncio.to_thread(lambda: read_memory_files(Path(args.path).expanduser()))
    made = await calls.import_memory_files(args.session, files, dry_run=args.dry_run)
    held = f"{format_count(made['facts'], 'fact')} and {format_count(made['notes'], 'note')}"
    held += f" in {format_count(len(made['files']), 'file')}"
    new = f", {made['noted']} of them new" if made["done"] else "; nothing was changed"
    _print_answer(screen, made, f"{held} for session {made['session']}{new}")


async def _export_memory(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> int:
    from everhold.admin.memory_files import write_export, write_memory_files

    to = Path(os.path.abspath(os.path.expanduser(args.to)))  # noqa: ASYNC240  # no file is touched
    async with show_waiting(screen, "reading every session"), aclosing(calls.export_person(args.person)) as records:
        files = await calls.show_memory_files(args.person)  # an invalid name is refused before a file is written
        made = await write_export(records, args.person, to)
        made["files"] += write_memory_files(files, to)
    known = bool(made["files"])
    if screen.json:
        screen.print_json(made)
        return 0 if known else 1
    screen.print_line(f"{format_count(made['records'], 'record')} of {format_one_line(made['person'])}")
    for path in made["files"]:
        screen.print_line(f"  {escape_control(path)}")
    for line in made["missing"]:
        screen.print_note(f"missing: {format_one_line(line)}")
    if not known:
        screen.print_note(_UNKNOWN_PERSON_TEXT)
    return 0 if known else 1
