"""`everhold agents`: lists the agents with their models, memories and tools."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from everhold.cli.connect import find_home, find_running_gateway
from everhold.cli.render import CommandScreen, format_one_line


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    found = asyncio.run(_fetch_agents(args))
    if screen.json:
        screen.print_json(found)
        return 0
    rows = [
        (
            format_one_line(agent["name"]) + (" *" if agent["name"] == found["default"] else ""),
            format_one_line(", ".join([agent["model"], *agent["fallback"]])),
            format_one_line(", ".join(agent["memories"])) or "-",
            format_one_line(", ".join(agent["tools"])) or "-",
            f"needs {', '.join(agent['missing'])} in .env" if agent["missing"] else "ready",
        )
        for agent in found["agents"]
    ]
    screen.print_table(("agent", "models", "memories", "tools", "state"), rows, styles=("bold",))
    return 0


async def _fetch_agents(args: argparse.Namespace) -> dict[str, Any]:
    """Return the agents of a running gateway, or those of the configuration files. The store is not opened."""
    reached = await find_running_gateway(find_home(args))
    if reached is not None:
        return await reached.calls.list_agents()
    import os

    from everhold.app import load_home_settings, render_agent

    settings = load_home_settings(find_home(args), environ=os.environ)
    listed = [render_agent(agent, settings) for agent in settings.agents.values()]
    return {"agents": listed, "default": settings.default_agent}
