"""hermes-agent's own plug-ins with the real servers of Honcho and Hindsight: two people, and a resend.

`make prove HONCHO=PATH HINDSIGHT=1` installs the servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.memories.hindsight import server as hindsight
from tests.memories.honcho import server as honcho

from .harness import HermesPluginHarness, make_batch, make_exchange, make_note
from .plugin_services import configure_plugin
from .test_bundled import find_plugin, python as python
from .test_honcho_resend import TALK
from .test_two_people import check_two_people

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def honcho_server() -> Iterator[honcho.HonchoServer]:
    source = honcho.find_checkout()
    if source is None:
        pytest.skip(f"Honcho's server is not there: {honcho.HOW}")
    with honcho.run_server(source) as server:
        server.start_worker()
        yield server


@pytest.fixture(scope="module")
def hindsight_server() -> Iterator[hindsight.Server]:
    found = hindsight.program()
    if found is None:
        pytest.skip(f"Hindsight's server is not installed: {hindsight.HOW}")
    with hindsight.running(found, derives=True) as server:
        yield server


def configure(harness: HermesPluginHarness, python: Path, name: str, url: str, **given: Any) -> dict[str, Any]:
    more = configure_plugin(harness.home, name, url, **given)
    return {"path": find_plugin(python, name), "python": str(python), "deadline_seconds": 120, **more}


@pytest.mark.parametrize("given, served", [({}, True), ({"pinUserPeer": True, "peerName": "ada"}, False)])
async def test_two_people_with_honcho(
    tmp_path: Path, python: Path, honcho_server: honcho.HonchoServer, given: dict[str, Any], served: bool
) -> None:
    harness = HermesPluginHarness(tmp_path)
    settings = configure(harness, python, "honcho", honcho_server.url, workspace=f"two-{served}", **given)
    assert await check_two_people(harness, **settings) == served


@pytest.mark.parametrize(
    "given, served", [({"bank_id_template": "b-{user}"}, True), ({"bank_id": "one-for-all"}, False)]
)
async def test_two_people_with_hindsight(
    tmp_path: Path, python: Path, hindsight_server: hindsight.Server, given: dict[str, Any], served: bool
) -> None:
    harness = HermesPluginHarness(tmp_path)
    # by default it recalls only what Hindsight consolidates over several documents, which our model does not do
    settings = configure(
        harness, python, "hindsight", hindsight_server.url, recall_types=["world", "experience"], **given
    )
    assert await check_two_people(harness, **settings) == served


async def test_a_resend_to_honcho_stores_nothing_twice(
    tmp_path: Path, python: Path, honcho_server: honcho.HonchoServer
) -> None:
    harness = HermesPluginHarness(tmp_path)
    settings = configure(harness, python, "honcho", honcho_server.url, workspace="resent")
    turns = [make_exchange(text, key=str(number)) for number, text in enumerate(TALK)]
    note = make_note("Ada never parks her bicycle in the cellar overnight")
    batches = [*map(make_batch, turns), make_batch(note)]
    async with harness.open(**settings) as plugin:
        for batch in batches:
            await plugin.store(batch)
    for _ in range(2):
        async with harness.open(**settings) as plugin:
            for batch in batches:
                if not await plugin.probe(batch):  # as a resend does
                    await plugin.store(batch)
            missing = make_exchange("My new wheelbarrow stands in the garden behind the shed", key="new")
            assert await plugin.probe(make_batch(missing)) == [], "a neighbour is no evidence"
    rows = honcho_server.database.list_messages("resent")
    assert {text: rows.count(text) for text in TALK} == dict.fromkeys(TALK, 1)
