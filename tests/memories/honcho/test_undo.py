"""After /undo nothing at Honcho shows the undone message or what Honcho concluded from it, and the rest is there."""

from __future__ import annotations

import json
import time
from pathlib import Path

from everhold.core.entries import Changed, MemoryNameSet, ToolCall
from everhold.core.erasure import PlaceErasure
from everhold.core.session_rebuild import SessionRebuild, begin_copying, continue_rebuild, merge_rebuilds
from everhold.engine.memory.rebuilds import load_rebuilds
from everhold.engine.memory.tombstones import is_withheld
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.e2e.running_gateway import RunningGateway, make_model_section
from tests.memories.services import MemoryServices
from tests.memories.test_tool_tombstones import ask_tool
from tests.waiting import wait_until

CANARY = "zanzibar7391"


async def is_rebuilt(gateway: RunningGateway) -> bool:
    return not await load_rebuilds(gateway.app.store)


async def test_an_undo_leaves_nothing_at_honcho(tmp_path: Path, services: MemoryServices) -> None:
    honcho = services.honcho
    honcho.derives, honcho.clock = True, time.time
    async with ModelServer() as server:
        config = json.loads(services.config("honcho", agent={"model": "m"}))
        config["models"] = {"m": make_model_section(server.openai)}
        async with RunningGateway(tmp_path, json.dumps(config)) as t:
            server.add_steps(*[ModelServerReply(text="I see")] * 2)
            session = (await t.send_message("I live in Rome")).session
            await t.wait_until_idle()
            await t.send_and_wait(f"my secret is {CANARY}")
            await t.wait_until_idle()
            honcho.plan_fault("refuse", method="DELETE", status=503, times=1)
            await t.send_and_wait("/undo")
            await t.wait_until_idle()
            audience = ((await t.app.store.list_entries(session))[0].author,)
            await wait_until(lambda: is_rebuilt(t))
            assert not await is_withheld(t.app.store, "honcho", agent="main", audience=audience)
            assert CANARY not in str([honcho.state.messages, honcho.state.conclusions, honcho.state.sessions])
            assert any("Rome" in it for it in honcho.list_conclusion_texts())
            names = [it.change for it in await t.read_bodies(session, Changed) if isinstance(it.change, MemoryNameSet)]
            old, new = [it.name for it in names]
            assert names[1].replaces == old
            assert old not in {name for _, name in honcho.state.sessions}
            shown = await ask_tool(t, server, "honcho_reasoning", {"query": "where do I live?"})
            assert "Rome" in shown
            assert CANARY not in shown
            await t.wait_until_idle()
            assert {row["session_id"] for row in honcho.state.messages} == {new}
            assert (await t.app.session_admin.audit_store()).findings == []


async def test_until_the_old_session_is_gone_the_conclusions_are_withheld(
    tmp_path: Path, services: MemoryServices
) -> None:
    """Also after a restart: the order is recorded before the service hears of the undo."""
    honcho = services.honcho
    honcho.derives, honcho.clock, honcho.deletes_sessions = True, time.time, False
    async with ModelServer() as server:
        config = json.loads(services.config("honcho", agent={"model": "m"}))
        config["models"] = {"m": make_model_section(server.openai)}
        async with RunningGateway(tmp_path, json.dumps(config)) as t:
            server.add_steps(ModelServerReply(text="I see"))
            await t.send_message(f"my secret is {CANARY}")
            await t.wait_until_idle()
            await t.send_and_wait("/undo")
            await t.wait_until_idle()
            assert not await is_rebuilt(t)
        async with RunningGateway(tmp_path, json.dumps(config)) as t:
            t._count = 10  # the ids of messages go on
            server.add_steps(
                ModelServerReply(calls=(ToolCall(id="c1", tool="honcho_reasoning", arguments={"query": "secret"}),)),
                ModelServerReply(text="done"),
            )
            await t.send_and_wait("please look")
            assert CANARY in str(honcho.state.conclusions)
            assert CANARY not in str(server.requests)[-4_000:]
            honcho.deletes_sessions = True
            await wait_until(lambda: is_rebuilt(t))
            assert CANARY not in str([honcho.state.messages, honcho.state.conclusions])


def make_rebuild(*keys: str, since: float = 5.0) -> SessionRebuild:
    place = PlaceErasure(agent="main", memory="honcho")
    return SessionRebuild(place=place, name="n", keys=keys, members=("person:a",), since=since)


def test_an_undo_during_the_copying_rebuilds_the_copy() -> None:
    begun = begin_copying(make_rebuild("s:3"))
    name = begun.new_name
    merged = merge_rebuilds(begun, make_rebuild("s:9", since=4.0))
    assert begin_copying(merged).new_name == name, "a rebuild that goes on has the same new name"
    assert merged.is_stale
    assert merged.since == 4.0
    rest = continue_rebuild(merged)
    assert rest is not None
    assert rest.name == name
    assert set(rest.keys) == {"s:3", "s:9"}
    assert not rest.copied_keys
    assert continue_rebuild(begun) is None
