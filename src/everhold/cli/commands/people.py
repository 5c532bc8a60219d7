"""`everhold people`: lists people, links their identities and names them."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from everhold.cli.client import ApiClient
from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, format_one_line, format_time

EVENTS_PER_PAGE = 1_000


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_run_command(args, screen))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    text, moves = "", list[str]()
    async with connect_for_reading(args, screen) as calls:
        match args.action:
            case "link":
                done = await calls.link_identity(args.identity, args.person, since=args.since)
                start = f" since {format_time(done['since'])}" if done["since"] else ""
                text = f"{done['identity']} belongs to {done['person']} now, with everything said under it{start}."
                moves = await _list_moves(calls, args.identity, done["person"])
            case "unlink":
                done = await calls.unlink_identity(args.identity)
                text = f"{done['identity']} no longer belongs to {done['person']}."
            case "name":
                done = await calls.name_person(args.person, args.name)
                text = f"{done['id']} is called {done['name']} now."
            case "peers":
                done = await calls.list_peers()
            case "peer":
                done = await calls.assign_peer(args.memory, args.peer, args.identity)
                text = f"{done['peer']} in {done['memory']} belongs to {done['identity']} now."
            case "events":
                done = {"events": await _read_events(calls)}
            case _:
                done = await calls.list_people()
    if screen.json:
        screen.print_json(done)
    elif text:
        screen.print_line(format_one_line(text))
        for command in moves:
            screen.print_note(f"What memories stored before keeps its name there. To move it: {command}")
    elif args.action == "peers":
        _print_peers(done["peers"], screen)
    elif args.action == "events":
        _print_events(done["events"], screen)
    else:
        _print_people(done["people"], screen)
    return 0


async def _list_moves(calls: ApiClient, identity: str, person: str) -> list[str]:
    """Return the commands that would move what was stored under an identity to the peer of its person."""
    rows = (await calls.list_peers())["peers"]
    memories = dict.fromkeys(row["memory"] for row in rows if row["identity"] == identity)
    return [f"everhold memory rekey {memory} --person {person}" for memory in memories]


def _print_peers(rows: list[dict[str, Any]], screen: CommandScreen) -> None:
    if not rows:
        screen.print_note("No memory has a name for anybody yet.")
        return
    shown = [
        (
            format_one_line(row["memory"]),
            format_one_line(row["agent"]),
            format_one_line(row["identity"]),
            format_one_line(row["peer"]) + (" (shared, recalled for nobody)" if row["shared"] else ""),
            row["source"],
        )
        for row in rows
    ]
    screen.print_table(("memory", "agent", "identity", "peer", "source"), shown)


async def _read_events(calls: ApiClient) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = await calls.list_people_events(after=after, limit=EVENTS_PER_PAGE)
        events += page["events"]
        after = page["next"]
    return events


def _print_events(events: list[dict[str, Any]], screen: CommandScreen) -> None:
    rows = [
        (
            format_time(it["at"]) if it["at"] else "-",
            it["action"],
            format_one_line(it["identity"] or it["note"]) or "-",
            it["person"],
            it["proof"] or "-",
            format_one_line(it["by"]) or "-",
        )
        for it in events
    ]
    screen.print_table(("time", "event", "identity", "person", "proof", "by"), rows)


def _print_people(people: list[dict[str, Any]], screen: CommandScreen) -> None:
    if not people:
        screen.print_note(
            "No people are known. Add them under people in config.yaml, or let them send /link in a chat."
        )
        return
    rows = [
        (
            format_one_line(it["name"] or it["id"]),
            format_one_line(", ".join(f"{one['identity']} ({one['proof']})" for one in it["identities"])) or "-",
            "everywhere" if it["owner"] else format_one_line(", ".join(it["owner_of"])) or "-",
        )
        for it in people
    ]
    screen.print_table(("person", "identities", "owner of"), rows, styles=("bold",))
