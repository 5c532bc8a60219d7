"""A failing memory is shown on the command line, in the metrics and through the API socket."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

from everhold.cli.commands import status
from everhold.cli.render import CommandScreen
from tests.clients import client_of
from tests.e2e.running_gateway import RunningGateway
from tests.memories.ledger import LedgerService


async def read_status(t: RunningGateway) -> tuple[dict[str, Any], str]:
    """Return what `everhold status` receives and prints."""
    found: dict[str, Any] = await client_of(t.app).show_status()
    out = io.StringIO()
    status._print_status(
        CommandScreen.from_streams(out, io.StringIO(), environ={}, json=False), found, status.list_problems(found)
    )
    return found, out.getvalue()


async def test_status_and_metrics_show_a_failing_memory_and_its_recovery(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    ledger_service.key = "the-right-key-0123456789"
    config = {
        "defaults": {"tools": [], "memories": ["ledger"]},
        "memories": {"ledger": {"api_key_env": "LEDGER_KEY"}},
    }
    began = time.time()
    async with RunningGateway(tmp_path, json.dumps(config), env="LEDGER_KEY=the-wrong-key-0123456789\n") as t:
        url = await t.app.serve(port=0)
        for word in ("one", "two"):
            await t.send_and_wait(word)

        async def failing() -> bool:
            return bool((await t.app.session_admin.collect_status())["failing"])

        await t.wait_until(failing)
        found, shown = await read_status(t)
        (memory,) = found["memories"]
        assert (memory["state"], memory["backlog"], memory["error"]) == ("failing", 2, "the key is wrong")
        assert began <= memory["backlog_since"] <= memory["failing_since"] + 1 <= time.time() + 1
        assert memory["next_attempt_at"] > began
        assert "memory    ledger of main · failing · backlog 2, oldest" in shown
        assert "! memory:ledger: the key is wrong" in shown
        async with t.open_client(url) as client:
            metrics = (await client.get("/metrics")).text
        assert 'everhold_memory_backlog_items{memory="ledger"} 2' in metrics
        assert 'everhold_memory_failing{memory="ledger"} 1' in metrics
        assert 'everhold_memory_backlog_age_seconds{memory="ledger"} ' in metrics
        t.write_secrets("LEDGER_KEY=the-right-key-0123456789\n")
        await t.send_and_wait("three")
        await t.wait_until(lambda: len(ledger_service.kept) == 3)
        await t.wait_until_idle()
        found, shown = await read_status(t)
        assert (found["memories"][0]["state"], found["memories"][0]["backlog"]) == ("healthy", 0)
        assert "ledger of main · healthy · last stored" in shown
        assert "no problems" in shown
        async with t.open_client(url) as client:

            async def is_backlog_gone() -> bool:  # backlogs are counted now and then, not at each scrape
                return "everhold_memory_backlog_items{" not in (await client.get("/metrics")).text

            await t.wait_until(is_backlog_gone)
        assert t.log.getvalue().count("memory.failing") == 1
        assert t.log.getvalue().count("memory.recovered") == 1
