"""`everhold approvals`: shows the calls that wait for permission, answers them, and revokes rules that answers made."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from everhold.cli.client import ApiClient
from everhold.cli.connect import connect_for_reading
from everhold.cli.render import CommandScreen, escape_control, format_one_line, format_time


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_run_command(args, screen))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        match args.action or "list":
            case "list":
                _print_requests(screen, await calls.list_approvals())
            case "show":
                _print_request(screen, await calls.show_approval(args.id))
            case "rules":
                _print_rules(screen, await calls.list_rules())
            case "revoke":
                done = await calls.revoke_rule(args.id)
                _print_done(screen, done, f"Revoked: rule {format_one_line(args.id)}.")
            case action:
                decision = "deny" if action == "deny" else "always" if args.always else "once"
                done = await _answer(calls, args.id, decision, getattr(args, "reason", ""))
                _print_done(screen, done, done["text"])
    return 0


async def _answer(calls: ApiClient, id: str, decision: str, reason: str) -> dict[str, Any]:
    """Answer a request as it is now."""
    shown = await calls.show_approval(id)
    return await calls.answer_approval(shown["id"], decision=decision, digest=shown["digest"], note=reason)


def _print_done(screen: CommandScreen, done: dict[str, Any], text: str) -> None:
    if screen.json:
        screen.print_json(done)
    else:
        screen.print_line(escape_control(text))


def _print_requests(screen: CommandScreen, found: dict[str, Any]) -> None:
    if screen.json:
        screen.print_json(found)
        return
    if not found["approvals"]:
        screen.print_note("No call waits for permission.")
        return
    rows = [
        (
            it["id"],
            format_one_line(it["agent"]),
            format_one_line(it["tool"]),
            format_one_line(it["arguments"].strip()),
            it["state"],
            format_time(it["expires"]),
        )
        for it in found["approvals"]
    ]
    screen.print_table(("id", "agent", "tool", "arguments", "state", "until"), rows, styles=("bold",))
    screen.print_note("`everhold approvals show ID` shows a call whole.")


def _print_request(screen: CommandScreen, found: dict[str, Any]) -> None:
    if screen.json:
        screen.print_json(found)
        return
    screen.print_line(escape_control(found["text"]))
    if found["asked_by"]:
        screen.print_line(f"asked by {escape_control(found['asked_by'])} in session {found['session']}")
    if (decision := found["decision"]) is not None:
        screen.print_line(escape_control(f"settled: {decision['text']}, {format_time(decision['at'])}"))


def _print_rules(screen: CommandScreen, found: dict[str, Any]) -> None:
    if screen.json:
        screen.print_json(found)
        return
    if not found["rules"]:
        screen.print_note("No answer made a rule. `everhold approvals approve ID --always` makes one.")
        return
    rows = [
        (
            it["id"],
            format_one_line(it["agent"]),
            format_one_line(it["tool"]),
            format_one_line(it["arguments"].strip()),
            format_one_line(f"{it['role']}, {it['place']}, {it['via']}"),
            format_one_line(it["by"]),
            format_time(it["until"]),
        )
        for it in found["rules"]
    ]
    screen.print_table(("id", "agent", "tool", "arguments", "for", "by", "until"), rows, styles=("bold",))
