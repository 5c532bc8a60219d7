"""`everhold status`: shows the state of the gateway, and problems with remedies. Exits 1 if there are any."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any, Final

from everhold.cli.commands.memory import describe_unacknowledged
from everhold.cli.connect import connect_for_reading, find_home, wait_for_answer
from everhold.cli.render import CommandScreen, escape_control, format_count, format_duration, format_one_line

WATCH_SECONDS: Final = 2.0


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    if not args.watch:
        return asyncio.run(_print_once(args, screen))
    try:
        while True:  # connect each time, so that the home is not held in between
            if screen.out.isatty() and not screen.json:
                screen.out.write("\x1b[H\x1b[2J")
            asyncio.run(_print_once(args, screen))
            screen.out.flush()
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return 0


async def _print_once(args: argparse.Namespace, screen: CommandScreen) -> int:
    async with connect_for_reading(args, screen) as calls:
        found = await wait_for_answer(find_home(args), calls.show_status())
    wrong = list_problems(found)
    if screen.json:
        screen.print_json({**found, "wrong": [{"what": what, "remedy": remedy} for what, remedy in wrong]})
    else:
        _print_status(screen, found, wrong)
    return 1 if wrong else 0


def list_problems(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the problems that need attention, with remedies."""
    wrong: list[tuple[str, str]] = []
    if found["store"]:
        wrong.append((f"store: {found['store']}", "free disk space, or see `everhold logs`"))
    for problem in found["refused"]:
        where = f"{problem['file']}:{problem['line']}" if problem["line"] else problem["file"]
        said = ": ".join(part for part in ("refused", where, problem["key"], problem["message"]) if part)
        wrong.append((said, problem["remedy"]))
    for key in found.get("restart", ()):  # a gateway of an older version does not report it
        wrong.append((f"the change of {key} has no effect yet", "restart everhold"))
    for problem in found["problems"]:
        state = "disabled" if problem["disables"] else "note"
        wrong.append((f"{state}: {problem['key'] or problem['disables']}: {problem['message']}", problem["remedy"]))
    if found["pending"] and not found["running"]:
        waiting = format_count(found["pending"], "message")
        wrong.append((f"{waiting} waiting, but no gateway is running", "everhold up"))
    for row in found["waiting"]:
        if row["error"]:
            wrong.append(
                (f"{row['consumer']}: {row['error']}", "everhold tries again; `everhold logs` has the details")
            )
    for it in found.get("given_up", ()):  # an older gateway reports none
        what = f"session {it['session']}: {it['starts']} processes ended during its turn, so it is given up for now"
        remedy = f"it is tried again by itself when the gateway has run for {format_duration(it['after_seconds'])}"
        wrong.append((what, f"{remedy}; /stop in the chat ends it"))
    for it in found["memories"]:
        if it["state"] == "failing" and f"memory:{it['memory']}" not in found["failing"]:
            what = it["error"] or it["report"] or "it does not answer"
            remedy = it.get("remedy") or "everhold delivers its items later"  # an older gateway reports none
            wrong.append((f"memory {it['memory']} of {it['agent']}: {what}", remedy))
        for hook, error in it["hooks"].items():
            wrong.append((f"memory {it['memory']} of {it['agent']}: {hook}: {error}", "no data is lost"))
    for it in found.get("erasures", ()):  # an older gateway reports none
        if it["state"] == "unconfirmed":
            where = ", ".join(f"{one['memory']} of {one['agent']}" for one in it["places"]) or "the log"
            what = f"forgetting {it['id']} is not confirmed after a day: {where}"
            wrong.append((what, "`everhold memory erasures` says what is left; everhold asks again every day"))
    for it in found.get("rebuilds", ()):
        if it["state"] == "unconfirmed":
            what = f"memory {it['memory']} of {it['agent']} still has a session with something that was undone"
            wrong.append((what, it["problem"] or "everhold asks again every day"))
    for loop in found["loops"]:
        where = f"{loop['platform']}:{loop['chat']} ({loop['agent']})"
        wrong.append(
            (f"agents answered each other too often in {where}", "a message from a person there lets them continue")
        )
    for halt in found["halted"]:
        wrong.append((f"{halt['platform']}:{halt['chat']} was halted by {halt['by']}", "send /wake there"))
    for it in found.get("limited", ()):  # an older gateway reports none
        what = f"{format_count(it['count'], 'message')} of {it['subject']} refused: the limit is {it['limit']:,}"
        wrong.append((what, f"raise `quotas`, `{it['quota']}`, if that is too low"))
    if found["dead_letters"]:
        wrong.append((format_count(found["dead_letters"], "dead letter"), "everhold dead-letters list"))
    return wrong


def _print_status(screen: CommandScreen, found: dict[str, Any], wrong: list[tuple[str, str]]) -> None:
    paint = screen.paint
    if found["running"]:
        what = f"{found['role']} {found['pid']} has been running for {format_duration(time.time() - found['since'])}"
        screen.print_line(" · ".join(part for part in (f"{paint('●', 'green')} {what}", found["url"]) if part))
    else:
        screen.print_line(f"{paint('○', 'dim')} no gateway is running")
    screen.print_line(f"  home      {escape_control(found['home'])}")
    screen.print_line(f"  version   everhold {found['version']} · configuration {found['revision']}")
    screen.print_line(f"  waiting   {format_count(found['pending'], 'message')}")
    backlog = _show_backlog(found["waiting"])
    if backlog:
        screen.print_line(f"  backlog   {backlog}")
    for memory in found["memories"]:
        screen.print_line(f"  memory    {_format_memory(memory)}")
    for it in found.get("erasures", ()):  # an older gateway reports none
        screen.print_line(f"  forget    {_format_erasure(it)}")
    for it in found.get("rebuilds", ()):
        screen.print_line(f"  rebuild   {_format_rebuild(it)}")
    screen.print_line(f"  failed    {format_count(found['dead_letters'], 'dead letter')}, {found['in_doubt']} in doubt")
    for account in found["accounts"]:
        waiting = "another host listens" if account.get("elsewhere") else "not listening"  # an older one does not say
        state = "listening" if account["listening"] else account["trouble"] or waiting
        name = f"{format_one_line(account['platform'])}/{format_one_line(account['account'])}"
        waits = _format_held(account.get("held"))  # an older gateway does not report it
        screen.print_line(f"  account   {name} · {format_one_line(state)}{waits}")
    for agent in found["agents"]:
        name = paint(format_one_line(agent["name"]), "bold")
        screen.print_line(
            f"  agent     {name} · {format_one_line(agent['model'])}{_format_spending(agent['spent'], agent['budget'])}"
        )
    for person in found.get("people", ()):
        spent = person["spent"]
        used = f"{spent['tokens']:,} tokens, {spent['usd']:.2f} USD"
        screen.print_line(f"  person    {format_one_line(person['name']) or 'unknown'} · today {used}")
    for made in found["compressions"]:
        how = (
            f"{format_count(made['messages'], 'message')}, {made['tokens_before']:,} → {made['tokens_after']:,} tokens"
        )
        when = format_duration(time.time() - made["at"])
        screen.print_line(f"  summary   {format_one_line(made['session'])} {when} ago · {how} · {made['trigger']}")
    for risk in found.get("risks", ()):  # a gateway of an older version does not report them
        screen.print_line(f"  risk      {format_one_line(risk['key'])} · {format_one_line(risk['message'])}")
    for text, remedy in wrong:
        screen.print_line(f"{paint('!', 'red', 'bold')} {format_one_line(text)}")
        if remedy:
            screen.print_line(f"  → {format_one_line(remedy)}")
    if not wrong:
        screen.print_line(f"{paint('✓', 'green')} no problems")


def _format_held(held: dict[str, Any] | None) -> str:
    """Describe what an account waits for: messages whose files are still at the platform."""
    if not held:
        return ""
    what = f"{format_count(held['messages'], 'message')} in {format_count(held['chats'], 'chat')}"
    file = f" {format_one_line(held['file'])}" if held["file"] else " a file"
    return f" · {what} waiting for{file}, oldest {format_duration(max(0.0, time.time() - held['since']))}"


def _format_spending(spent: dict[str, Any], budget: dict[str, Any]) -> str:
    """Describe what an agent has used of its budget today."""
    tokens = f"{spent['tokens']:,}" + (f" of {budget['tokens']:,}" if budget["tokens"] is not None else "")
    usd = f"{spent['usd']:.2f}" + (f" of {budget['usd']:.2f}" if budget["usd"] is not None else "")
    bound = budget["tokens"] is not None or budget["usd"] is not None
    return f" · today {tokens} tokens, {usd} USD" if spent["tokens"] or bound else ""


def _format_memory(it: dict[str, Any]) -> str:
    """Describe one memory of one agent: its state, backlog and last error."""
    now = time.time()
    parts = [f"{format_one_line(it['memory'])} of {format_one_line(it['agent'])}", it["state"]]
    if it["backlog"]:
        parts.append(
            f"backlog {it['backlog']}, oldest {format_duration(now - it['backlog_since'])}"
            if it["backlog_since"]
            else str(it["backlog"])
        )
    if it["stored_at"]:
        parts.append(f"last stored {format_duration(now - it['stored_at'])} ago")
    if it["state"] == "failing" and it["next_attempt_at"]:
        parts.append(f"next attempt in {format_duration(max(0.0, it['next_attempt_at'] - now))}")
    if it["sent"] is not None:
        parts.append(f"{it['delivery']}: {describe_unacknowledged(it['sent'], it['confirmed'])}")
    elif it["report"]:
        parts.append(format_one_line(it["report"]))
    return " · ".join(parts)


def _format_erasure(it: dict[str, Any]) -> str:
    """Describe a forgetting that is not finished: since when, and what each place that is left says."""
    places = [
        ", ".join(part for part in (f"{one['memory']} of {one['agent']} {one['state']}", one["problem"]) if part)
        for one in it["places"]
    ]
    since = f"began {format_duration(max(0.0, time.time() - it['at']))} ago"
    return " · ".join(format_one_line(part) for part in (it["id"], it["state"], since, *places))


def _format_rebuild(it: dict[str, Any]) -> str:
    """Describe a session that a memory stores anew after an undo, and what it waits for."""
    parts = [f"{it['memory']} of {it['agent']}", it["state"], f"{format_count(it['items'], 'item')} undone"]
    if it["waits_for"]:
        parts.append(f"waits for the forgetting {', '.join(it['waits_for'])}")
    elif it["problem"]:
        parts.append(it["problem"])
    return " · ".join(format_one_line(part) for part in parts)


def _show_backlog(rows: list[dict[str, Any]]) -> str:
    """Describe in how many sessions each consumer has work, and how long the oldest has waited."""
    now = time.time()
    return ", ".join(
        f"{format_one_line(row['consumer'])} {format_count(row['sessions'], 'session')}, "
        f"oldest {format_duration(now - (row['since'] or now))}"
        for row in rows
    )
