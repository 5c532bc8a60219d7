"""`everhold drain`: ends the running gateway without losing work, as SIGTERM does."""

from __future__ import annotations

import argparse
import asyncio

from everhold.cli.connect import find_home, find_running_gateway
from everhold.cli.render import CommandScreen
from everhold.errors import NotFound


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_drain_gateway(args, screen))


async def _drain_gateway(args: argparse.Namespace, screen: CommandScreen) -> int:
    reached = await find_running_gateway(find_home(args))
    if reached is None or reached.role != "gateway":
        raise NotFound("no gateway is running", remedy="everhold status")
    done = await reached.calls.start_draining()
    if screen.json:
        screen.print_json(done)
    else:
        screen.print_line("the gateway takes nothing new, and ends when its work is done or handed over")
    return 0
