"""`everhold agents`: who there is, and what they work with."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from everhold.cli.reach import answering, home_of
from everhold.cli.render import Screen, one_line


def run(args: argparse.Namespace, screen: Screen) -> int:
    found = asyncio.run(_ask(args))
    if screen.json:
        screen.show(found)
        return 0
    rows = [
        (
            one_line(agent["name"]) + (" *" if agent["name"] == found["default"] else ""),
            one_line(", ".join([agent["model"], *agent["fallback"]])),
            one_line(", ".join(agent["memories"])) or "-",
            one_line(", ".join(agent["tools"])) or "-",
            f"needs {', '.join(agent['missing'])} in .env" if agent["missing"] else "ready",
        )
        for agent in found["agents"]
    ]
    screen.table(("agent", "models", "memories", "tools", "state"), rows, styles=("bold",))
    return 0


async def _ask(args: argparse.Namespace) -> dict[str, Any]:
    """What a running gateway has in force; else what the files say, without touching the store."""
    reached = await answering(home_of(args))
    if reached is not None:
        return await reached.calls.list_agents()
    import os

    from everhold.app import agent_json, settings_of

    settings = settings_of(home_of(args), environ=os.environ)
    listed = [agent_json(agent, settings) for agent in settings.agents.values()]
    return {"agents": listed, "default": settings.default_agent}
