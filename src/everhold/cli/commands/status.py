"""`everhold status`: health at a glance. Exits 1 if something is wrong, and says what helps."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any, Final

from everhold.cli.commands.memory import account as known
from everhold.cli.reach import looking
from everhold.cli.render import Screen, ago, count, one_line, safe

WATCH_SECONDS: Final = 2.0


def run(args: argparse.Namespace, screen: Screen) -> int:
    if not args.watch:
        return asyncio.run(_once(args, screen))
    try:
        while True:  # each look reaches for control anew, so that nobody is kept from the home between two of them
            if screen.out.isatty() and not screen.json:
                screen.out.write("\x1b[H\x1b[2J")
            asyncio.run(_once(args, screen))
            screen.out.flush()
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return 0


async def _once(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls:
        found = await calls.show_status()
    wrong = complaints(found)
    if screen.json:
        screen.show({**found, "wrong": [{"what": what, "remedy": remedy} for what, remedy in wrong]})
    else:
        _show(screen, found, wrong)
    return 1 if wrong else 0


def complaints(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Everything that needs somebody, with what helps."""
    wrong: list[tuple[str, str]] = []
    if found["store"]:
        wrong.append((f"store: {found['store']}", "free space, or look into `everhold logs`"))
    for problem in found["refused"]:
        where = f"{problem['file']}:{problem['line']}" if problem["line"] else problem["file"]
        said = ": ".join(part for part in ("refused", where, problem["key"], problem["message"]) if part)
        wrong.append((said, problem["remedy"]))
    for key in found.get("restart", ()):  # a gateway that was there before an upgrade does not say
        wrong.append((f"{key} was changed, and is not in force", "restart everhold"))
    for problem in found["problems"]:
        wrong.append((f"off: {problem['key'] or problem['disables']}: {problem['message']}", problem["remedy"]))
    if found["pending"] and not found["running"]:
        waiting = count(found["pending"], "message")
        wrong.append((f"{waiting} without anybody to answer", "everhold up"))
    for row in found["waiting"]:
        if row["error"]:
            wrong.append((f"{row['consumer']}: {row['error']}", "it is tried again; `everhold logs` has the details"))
    for it in found["memories"]:
        if it["state"] == "failing" and f"memory:{it['memory']}" not in found["failing"]:
            what = it["says"] or it["error"] or "it does not answer"
            wrong.append(
                (f"memory {it['memory']} of {it['agent']}: {what}", "what is said is kept, and goes there later")
            )
        for hook, error in it["hooks"].items():
            wrong.append((f"memory {it['memory']} of {it['agent']}: {hook}: {error}", "nothing is lost by it"))
    for loop in found["loops"]:
        where = f"{loop['platform']}:{loop['chat']} ({loop['agent']})"
        wrong.append((f"agents answered each other too often in {where}", "a human's word there lets them go on"))
    for halt in found["halted"]:
        wrong.append((f"{halt['platform']}:{halt['chat']} was silenced by {halt['by']}", "say /wake there"))
    if found["dead_letters"]:
        wrong.append((count(found["dead_letters"], "dead letter"), "everhold dead-letters list"))
    return wrong


def _show(screen: Screen, found: dict[str, Any], wrong: list[tuple[str, str]]) -> None:
    paint = screen.paint
    if found["running"]:
        what = f"{found['role']} {found['pid']} has been running for {ago(time.time() - found['since'])}"
        screen.say(" · ".join(part for part in (f"{paint('●', 'green')} {what}", found["url"]) if part))
    else:
        screen.say(f"{paint('○', 'dim')} no gateway is running")
    screen.say(f"  home      {safe(found['home'])}")
    screen.say(f"  version   everhold {found['version']} · configuration {found['revision']}")
    screen.say(f"  waiting   {count(found['pending'], 'message')}")
    backlog = _show_backlog(found["waiting"])
    if backlog:
        screen.say(f"  backlog   {backlog}")
    for memory in found["memories"]:
        screen.say(f"  memory    {_memory(memory)}")
    screen.say(f"  failed    {count(found['dead_letters'], 'dead letter')}, {found['in_doubt']} in doubt")
    for account in found["accounts"]:
        state = "listening" if account["listening"] else account["trouble"] or "not listening"
        screen.say(f"  account   {one_line(account['platform'])}/{one_line(account['account'])} · {one_line(state)}")
    for agent in found["agents"]:
        name = paint(one_line(agent["name"]), "bold")
        screen.say(f"  agent     {name} · {one_line(agent['model'])}{_today(agent['spent'], agent['budget'])}")
    for person in found.get("people", ()):
        spent = person["spent"]
        used = f"{spent['tokens']:,} tokens, {spent['usd']:.2f} USD"
        screen.say(f"  person    {one_line(person['name']) or 'somebody unknown'} · today {used}")
    for made in found["compressions"]:
        how = f"{count(made['messages'], 'message')}, {made['tokens_before']:,} → {made['tokens_after']:,} tokens"
        when = ago(time.time() - made["at"])
        screen.say(f"  summary   {one_line(made['session'])} {when} ago · {how} · {made['trigger']}")
    for text, remedy in wrong:
        screen.say(f"{paint('!', 'red', 'bold')} {one_line(text)}")
        if remedy:
            screen.say(f"  → {one_line(remedy)}")
    if not wrong:
        screen.say(f"{paint('✓', 'green')} nothing is wrong")


def _today(spent: dict[str, Any], budget: dict[str, Any]) -> str:
    """What an agent has used today, and of how much."""
    tokens = f"{spent['tokens']:,}" + (f" of {budget['tokens']:,}" if budget["tokens"] is not None else "")
    usd = f"{spent['usd']:.2f}" + (f" of {budget['usd']:.2f}" if budget["usd"] is not None else "")
    bound = budget["tokens"] is not None or budget["usd"] is not None
    return f" · today {tokens} tokens, {usd} USD" if spent["tokens"] or bound else ""


def _memory(it: dict[str, Any]) -> str:
    """One memory of one agent: how it is, how far behind, and what it said when it last failed."""
    now = time.time()
    parts = [f"{one_line(it['memory'])} of {one_line(it['agent'])}", it["state"]]
    if it["lag"]:
        parts.append(f"{it['lag']} to hand over, oldest {ago(now - it['oldest'])}" if it["oldest"] else str(it["lag"]))
    if it["stored"]:
        parts.append(f"took something in {ago(now - it['stored'])} ago")
    if it["state"] == "failing" and it["again"]:
        parts.append(f"tried again in {ago(max(0.0, it['again'] - now))}")
    if it["handed"] is not None:
        parts.append(f"{it['delivery']}: {known(it['handed'], it['seen'])}")
    elif it["says"]:
        parts.append(one_line(it["says"]))
    return " · ".join(parts)


def _show_backlog(rows: list[dict[str, Any]]) -> str:
    """In how many sessions each consumer has work, and how long the oldest has waited."""
    now = time.time()
    return ", ".join(
        f"{one_line(row['consumer'])} {count(row['sessions'], 'session')}, oldest {ago(now - (row['since'] or now))}"
        for row in rows
    )
