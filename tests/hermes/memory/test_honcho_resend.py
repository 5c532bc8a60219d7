"""A resend through Honcho's plug-in stores nothing twice, on a server that is as unhelpful as the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everhold.testing.services.base import ServiceReply, ServiceRequest, score_overlap
from everhold.testing.services.honcho import HonchoService

from .harness import HermesPluginHarness, make_batch, make_exchange, make_note
from .test_bundled import find_plugin, python as python

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]
THINGS = ("kettle", "bicycle", "violin", "umbrella", "lantern", "compass", "hammock", "telescope")
TALK = [f"My old {thing} is kept in the cellar next to shelf number {n}" for n, thing in enumerate(THINGS)]


class UnhelpfulHoncho(HonchoService):
    """As the real server (3.0.12), it lets the authors of each new message join the session anew, shows a peer only
    what was said since it joined, and fills search results with unrelated neighbours.
    """

    def __init__(self) -> None:
        super().__init__()
        self.joined: dict[tuple[str, str], int] = {}
        """(session, peer) -> number of messages when it joined."""

    def add_messages(self, call: ServiceRequest, workspace: str, session: str) -> ServiceReply:
        for message in (call.json or {}).get("messages") or []:
            self.joined[session, message["peer_id"]] = len(self.state.messages)
        return super().add_messages(call, workspace, session)

    def search(self, call: ServiceRequest, workspace: str) -> list[dict[str, Any]]:
        peer = call.json["filters"]["peer_perspective"]
        rows = [
            row
            for number, row in enumerate(self.state.messages)
            if number >= self.joined.get((row["session_id"], peer), 10**9)
        ]
        return rank_neighbours(call.json, rows)

    def search_peer(self, call: ServiceRequest, workspace: str, peer: str) -> list[dict[str, Any]]:
        return rank_neighbours(call.json, [row for row in self.state.messages if row["peer_id"] == peer])


def rank_neighbours(wanted: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ranked = sorted(rows, key=lambda row: score_overlap(wanted["query"], row["content"]), reverse=True)
    return ranked[: wanted.get("limit") or 10]


async def test_what_the_server_has_is_not_sent_again(tmp_path: Path, python: Path) -> None:
    async with UnhelpfulHoncho() as service:
        harness = HermesPluginHarness(tmp_path)
        harness.home.mkdir()
        known = {"apiKey": "k", "baseUrl": service.url, "enabled": True, "workspace": "w"}
        (harness.home / "honcho.json").write_text(json.dumps(known))
        settings = {"path": find_plugin(python, "honcho"), "python": str(python), "deadline_seconds": 120}
        turns = [make_exchange(text, key=str(number)) for number, text in enumerate(TALK)]
        note = make_note("Ada never parks her bicycle in the cellar overnight")
        async with harness.open(**settings) as plugin:
            for turn in turns:
                await plugin.store(make_batch(turn))
            await plugin.store(make_batch(note))
        for _ in range(2):
            async with harness.open(**settings) as plugin:
                batches = [*(make_batch(turn) for turn in turns), make_batch(note)]
                for batch in batches:
                    assert await plugin.probe(batch) == [batch.items[0].key]
                missing = make_exchange("My new wheelbarrow stands in the garden behind the shed", key="new")
                assert await plugin.probe(make_batch(missing)) == [], "a neighbour is no evidence"
