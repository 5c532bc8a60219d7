"""People in a running gateway: an edit of the configuration, and a plug-in that leaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw
import pytest

from everhold.admin.provider_erasure import ProviderEraser
from everhold.core.erasure import PlaceErasure
from everhold.core.people import IdentityProof
from everhold.ports.memory import ErasureTarget
from everhold.testing.model_server import ModelServer
from tests.e2e.canary_world import DIRECT, CanaryWorld
from tests.e2e.running_gateway import RunningGateway, make_model_section
from tests.hermes.memory.test_isolation import LEAKING
from tests.memories.services import NAMES, MemoryServices

TELEGRAM, DISCORD, OTHER = "telegram:1", "discord:1", "discord:2"


def dump_table(path: Path, sql: str) -> list[Any]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return list(db.execute(sql))
    finally:
        db.close()


def mark_index(path: Path) -> None:
    db = apsw.Connection(str(path))
    try:
        db.execute("insert into takes(session, seq, op) values ('marker', 0, 0)")
    finally:
        db.close()


def record_targets(
    eraser: ProviderEraser, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[tuple[str, str], ErasureTarget]]:
    """Record what each memory is asked to delete."""
    found = []
    build = eraser._build_target

    async def build_target(place: PlaceErasure, *more: Any) -> ErasureTarget:
        target = await build(place, *more)
        found.append(((place.agent, place.memory), target))
        return target

    monkeypatch.setattr(eraser, "_build_target", build_target)
    return found


async def test_a_person_who_is_configured_after_weeks_finds_everything(tmp_path: Path) -> None:
    """Scenario 6. The edit takes effect at the next message. No entry changes, and the index is not built again."""
    async with ModelServer() as model, CanaryWorld(tmp_path, model, {}) as world:
        app, home = world.gateway.app, world.gateway.home
        await world.send("the zanzibar word is hush7391", TELEGRAM, DIRECT, "main")
        await world.send("/memory note zanzibar hush7391 noted", TELEGRAM, DIRECT, "main")
        await world.send("/title Spices", TELEGRAM, DIRECT, "main")
        assert "hush7391" not in await world.send("what is the zanzibar word?", DISCORD, DIRECT, "main")
        assert "hush7391" not in await world.send("what is the zanzibar word?", OTHER, DIRECT, "main")
        await app.memory_admin.search_memories("zanzibar", agent="main", person=TELEGRAM)  # the index has caught up
        entries, marker = "select * from entries order by pos", "select 1 from takes where session = 'marker'"
        mark_index(home.index)
        before = dump_table(home.store, entries)
        world.people = [{"name": "ada", "identities": [TELEGRAM, DISCORD]}]
        world.gateway.configure(world.render_config())
        # /whoami is the next message: it needs no model and no memory
        assert "ada" in await world.send("/whoami", DISCORD, DIRECT, "main")
        assert dump_table(home.store, entries)[: len(before)] == before
        assert dump_table(home.index, marker), "an index that is built again has lost it"
        assert "Spices" in await world.send("/sessions", DISCORD, DIRECT, "main")
        assert "hush7391" in await world.send("/memory search zanzibar", DISCORD, DIRECT, "main")
        assert "hush7391" in await world.send("what is the zanzibar word?", DISCORD, DIRECT, "main")
        for name in ("ada", DISCORD):
            assert "hush7391" in str(await app.memory_admin.search_memories("zanzibar", agent="main", person=name))
        assert "hush7391" not in await world.send("and what is the word now?", OTHER, DIRECT, "main")
        world.people = []
        world.gateway.configure(world.render_config())
        assert "Spices" not in await world.send("/sessions", DISCORD, DIRECT, "main")
        assert "hush7391" not in str(await app.memory_admin.search_memories("zanzibar", agent="main", person=DISCORD))
        assert dump_table(home.store, entries)[: len(before)] == before
        await world.gateway.assert_sound()


async def test_a_forgotten_person_takes_nothing_of_a_former_owner_from_any_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The identity changed hands, and its peer at the services with it."""
    async with MemoryServices().run() as services, ModelServer() as model:
        quick = {name: {"visible_seconds": 0.0, "confirm_seconds": 0.05} for name in NAMES}
        del quick["honcho"]["confirm_seconds"], quick["hindsight"]["visible_seconds"]
        memories = {name: services.settings(name, **quick[name]) for name in NAMES}
        async with CanaryWorld(tmp_path, model, memories) as world:
            app = world.gateway.app
            await world.send("the zanzibar word is canary1x", DISCORD, DIRECT, "main")
            await world.send("hello", TELEGRAM, DIRECT, "main")
            before = await world.ask_memories("zanzibar canary1x", DISCORD, "main")
            assert before == {name: {"canary1x"} for name in NAMES}
            await app.admission.people.name_person(TELEGRAM, "grace", by="operator")
            now = app.clock.now()
            await app.admission.people.link_identity(
                DISCORD, "grace", proof=IdentityProof.OPERATOR, since=now, by="operator"
            )
            await world.send("the zanzibar word is canary2x", DISCORD, DIRECT, "main")
            await world.send("the zanzibar word is canary3x", TELEGRAM, DIRECT, "main")
            targets = record_targets(app.memory_admin.eraser, monkeypatch)
            await app.memory_admin.forget_person("grace")
            (mine,) = (it for memory, it in targets if memory == ("main", "honcho"))
            assert mine.reused_identities == {DISCORD}
            assert len(mine.shared_peers) == 1, "the peer that the former owner had, too"
            assert not {*mine.shared_peers} & {*mine.peers}
            await world.gateway.wait_until_idle()
            assert await world.ask_memories("zanzibar canary1x", DISCORD, "main") == before
            found = str(await app.memory_admin.search_memories("zanzibar", agent="main", person=DISCORD))
            assert "canary1x" in found
            for word in ("canary2x", "canary3x"):
                for identity in (DISCORD, TELEGRAM):
                    assert word not in str(await world.ask_memories(f"zanzibar {word}", identity, "main"))
            await world.gateway.assert_sound()


async def test_a_leaking_plugin_refuses_the_second_person_and_turns_go_on(tmp_path: Path) -> None:
    """Scenario 11. `status` names the plug-in and the reason."""
    (tmp_path / "leaking").mkdir()
    (tmp_path / "leaking" / "__init__.py").write_text(LEAKING)
    outside = tmp_path / "outside"
    outside.mkdir()
    memory = {
        "provider": "hermes-plugin",
        "path": str(tmp_path / "leaking"),
        "environ": {"KEPT": str(outside / "everybody.txt")},
        "write_paths": [str(outside)],
    }
    async with ModelServer() as model:
        config = {
            "models": {"fake": make_model_section(model.openai)},
            "defaults": {"model": "fake"},
            "agents": {"main": {"memories": ["leaking"], "recall": {"deadline_seconds": 30}, "tools": []}},
            "memories": {"leaking": memory},
            "people": [{"name": "ada"}, {"name": "bob"}],
            "access": {"owners": ["ada"]},
        }
        async with RunningGateway(tmp_path, json.dumps(config)) as gateway:

            async def is_refused() -> bool:
                rows = (await gateway.app.session_admin.collect_status())["memories"]
                return "serves only the owner" in str(rows)

            await gateway.send_and_wait("my pin is hush7391", chat="a", who="ada")
            await gateway.wait_until(lambda: (outside / "everybody.txt").exists())
            assert await gateway.send_and_wait("what is the pin?", chat="b", who="bob")
            await gateway.wait_until(is_refused)
            asked = len(model.requests)
            assert await gateway.send_and_wait("and the pin?", chat="b", who="bob")
            assert "hush7391" not in "".join(request.body.decode() for request in model.requests[asked:])
    assert "what is the pin" not in (outside / "everybody.txt").read_text()
