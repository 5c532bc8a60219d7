"""`everhold memory`: searches and explains memory, sends history to memories, and forgets or exports a person."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from everhold.cli.client import ApiClient
from everhold.cli.connect import connect_for_reading
from everhold.cli.errors import AGAIN, DONE, WRONG
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
            case "compare":
                return await _compare_memories(calls, args, screen)
            case "resend":
                await _resend_to_memory(calls, args, screen)
            case "backfill":
                await _start_backfill(calls, args, screen)
            case "rekey":
                await _start_rekey(calls, args, screen)
            case "forget":
                return await _forget_person(calls, args, screen)
            case "erasures":
                return await _list_erasures(calls, args, screen)
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
    wrong = any(row["error"] or row["dead_letters"] or not row["available"] for row in found["memories"])
    if screen.json:
        screen.print_json(found)
        return 1 if wrong else 0
    rows = [
        (
            format_one_line(row["agent"]),
            format_one_line(row["memory"]),
            "available" if row["available"] else "not available",
            f"{row['backlog']} since {format_duration(time.time() - row['backlog_since'])}"
            if row["backlog_since"] is not None
            else "nothing",
            str(row["dead_letters"]),
            format_one_line(row["error"], most=60),
        )
        for row in found["memories"]
    ]
    screen.print_table(("agent", "memory", "", "backlog", "dead letters", "last error"), rows, styles=("bold",))
    for row in found["memories"]:
        name = f"{format_one_line(row['memory'])} of {format_one_line(row['agent'])}"
        if row["sent"] is not None:
            screen.print_line(f"{name} is {row['delivery']}: {describe_unacknowledged(row['sent'], row['confirmed'])}")
        elif row["report"] and not row.get("remedy"):
            screen.print_line(f"{name}: {format_one_line(row['report'])}")
        if row.get("remedy"):  # a gateway of an older version does not report it
            screen.print_line(f"{name}: {format_one_line(row['report'])} → {format_one_line(row['remedy'])}")
        if row["rekeying"]:
            screen.print_line(f"{name}: {format_count(row['rekeying'], 'session')} being moved to another peer")
        if row["replaying"]:
            screen.print_line(f"{name}: {format_count(row['replaying'], 'item')} to be sent again")
    for names in found["forgetting"]:
        screen.print_note(f"{format_one_line(names[0])} is not forgotten by all memories yet. everhold tries again.")
    return 1 if wrong else 0


def describe_unacknowledged(sent: int, confirmed: int) -> str:
    """Describe what is known about a memory that does not acknowledge writes."""
    return f"{sent} sent, {confirmed} confirmed by reading back, {sent - confirmed} unknown"


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


async def _compare_memories(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> int:
    found = await calls.compare_memories(agent=args.agent, person=args.person, limit=args.limit)
    if screen.json:
        screen.print_json(found)
        return 0 if found["questions"] else 1
    if not found["questions"]:
        screen.print_note("No answer of this agent has a record of recall yet. Ask it something.")
        return 1
    rows = [
        (
            format_one_line(row["memory"]),
            row["mode"],
            f"{row['answered']} of {row['asked']}",
            f"{row['found']:.1f}",
            f"{row['used']:.1f}",
            f"{row['helped']} ({row['alone']} alone)",
            f"{row['seconds_p50'] * 1000:.0f} / {row['seconds_p95'] * 1000:.0f}",
            f"{row['tokens']:.0f}",
            f"{row['usd']:.4f}",
        )
        for row in found["memories"]
    ]
    head = ("memory", "mode", "answered", "hits", "used", "answers helped", "ms p50 / p95", "tokens", "usd")
    screen.print_table(head, rows, styles=("bold",))
    for one in found["overlaps"]:
        names = f"{format_one_line(one['first'])} and {format_one_line(one['second'])}"
        screen.print_line(f"{names} have {one['share']:.0%} of their hits in common")
    screen.print_note(
        f"{format_count(len(found['questions']), 'question')} of {format_one_line(found['agent'])}. Hits, used, tokens "
        "and usd are per question; --json lists every question with the evidence that its answer used."
    )
    return 0


def _format_location(item: dict[str, Any]) -> str:
    person, kind = item.get("person", ""), item.get("kind", "")
    source = f"reply to {person}" if kind == "reply" else " by ".join(part for part in (kind, person) if part)
    parts = [item["provider"], source, format_time(item["at"]) if item.get("at") else ""]
    if item.get("session"):
        parts.append(f"session {item['session']}" + (f", entry {item['seq']}" if item.get("seq") else ""))
    if item.get("origin"):
        parts.append(f"from {item['origin']}")
    if item.get("until"):
        parts.append(f"outdated since {format_time(item['until'])}" + _format_replacement(item))
    return format_one_line(" · ".join(part for part in parts if part))


def _format_replacement(item: dict[str, Any]) -> str:
    session, _, seq = item.get("replaced_by", "").rpartition(":")
    return f" by session {session}, entry {seq}" if session else ""


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


async def _start_rekey(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> None:
    async with show_waiting(screen, "looking through every session"):
        found = await calls.rekey_memory(args.memory, person=args.person, agent=args.agent, dry_run=not args.yes)
    if screen.json:
        screen.print_json(found)
        return
    memory = format_one_line(found["memory"])
    for identity, peer in sorted(found["new_peers"].items()):
        screen.print_line(f"{format_one_line(identity)} is {format_one_line(peer)} in {memory}")
    if not found["items"]:
        screen.print_note("Nothing is left to move. A move that is under way is shown by `everhold memory status`.")
        return
    what = format_count(found["items"], "exchange or note", "exchanges and notes")
    screen.print_line(f"{what} of {format_count(found['sessions'], 'session')}")
    screen.print_line(f"  now under {format_one_line(', '.join(found['old_peers']))}")
    screen.print_line(f"  about {format_count(found['requests'], 'request')}")
    if found["begun"]:
        screen.print_note("Started. `everhold memory status` shows how far it is. It resumes after a restart.")
    else:
        screen.print_note("Nothing was changed; --yes starts it.")


# -- a person ----------------------------------------------------------------------------------------------------------


async def _forget_person(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> int:
    async with show_waiting(screen, "forgetting" if args.yes else "looking through every session"):
        found = await calls.forget_person(args.person, dry_run=not args.yes, rebuild=args.rebuild)
    code = _choose_exit_code([found["state"]]) if args.yes else DONE
    if screen.json:
        screen.print_json(found)
        return code
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
    if found["records"]:
        screen.print_line(f"  {format_count(found['records'], 'record')} of pairing, links and direct chats")
    _print_places(screen, found["places"])
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
        screen.print_note(
            "Not all memories have confirmed. everhold goes on by itself; `everhold memory erasures` shows how far."
        )
    return code


async def _list_erasures(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> int:
    found = [await calls.accept_remainders(args.accept)] if args.accept else await calls.list_erasures()
    code = _choose_exit_code([it["state"] for it in found])
    if screen.json:
        screen.print_json({"erasures": found})
        return code
    if not found:
        screen.print_note("Nobody was forgotten yet.")
    for it in found:
        who = screen.paint(format_one_line(", ".join(it["identities"])), "bold")
        screen.print_line(f"{it['id']}  {who}, {format_time(it['at'])}: {it['state']}")
        _print_places(screen, it["places"])
    return code


def _choose_exit_code(states: Sequence[str]) -> int:
    """75 while something is asked, because waiting helps; 1 if something is unconfirmed or cannot."""
    if any(state in ("planned", "asked") for state in states):
        return AGAIN
    return WRONG if any(state != "confirmed" for state in states) else DONE


def _print_places(screen: CommandScreen, places: Sequence[dict[str, Any]]) -> None:
    for place in places:
        agent = f" (agent {format_one_line(place['agent'])})" if place["agent"] else ""
        problem = f": {format_one_line(place['problem'])}" if place["problem"] else ""
        accepted = f", accepted {format_time(place['accepted_at'])}" if place["accepted_at"] else ""
        screen.print_line(f"  {format_one_line(place['place'])}{agent}: {place['state']}{accepted}{problem}")
        for part in place["parts"]:
            reason = f": {format_one_line(part['reason'])}" if part["reason"] else ""
            screen.print_line(f"    {part['state']}: {format_one_line(part['what'])}{reason}")


def _format_entries(number: int) -> str:
    return format_count(number, "entry", "entries")


async def _import_facts(calls: ApiClient, args: argparse.Namespace, screen: CommandScreen) -> None:
    from everhold.admin.memory_files import read_memory_files

    files, refused = await asyncio.to_thread(lambda: read_memory_files(Path(args.path).expanduser()))
    made = await calls.import_memory_files(args.session, files, dry_run=args.dry_run)
    held = f"{format_count(made['facts'], 'fact')} and {format_count(made['notes'], 'note')}"
    held += f" in {format_count(len(made['files']), 'file')}"
    new = f", {made['noted']} of them new" + ("" if made["done"] else "; nothing was changed")
    for name, reason in refused.items():
        screen.print_note(f"{format_one_line(name)}: {reason}")
    for name in made["personas"]:
        screen.print_note(f"{format_one_line(name)} is a persona and no memory: set agents.{made['agent']}.persona")
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
