"""Six plug-ins with different faults, attached to one real gateway: only `status` shows the faults."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.e2e.running_gateway import RunningGateway

from .harness import RECORDER
from .test_misbehaving import BLOCKS, FLOODS, LEAKS, LEAVES, RAISES, SHOUTS

ALL = {"raises": RAISES, "blocks": BLOCKS, "shouts": SHOUTS, "leaves": LEAVES, "leaks": LEAKS, "floods": FLOODS}
HURRIED = {"blocks"}
"""Plug-ins whose calls must end by the deadline. The others need longer than that to start on a busy machine."""


def read_received(path: Path, name: str) -> list[str]:
    file = path / f"home-of-{name}" / "diary.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line[1] for line in lines if line[0] == "sync_turn"]


@pytest.mark.prove
async def test_misbehaving_plugins_do_not_disturb_the_chat_and_show_in_the_status(tmp_path: Path) -> None:
    memories = {}
    for name, source in {**ALL, "well": RECORDER}.items():
        plugin = tmp_path / name
        plugin.mkdir()
        (plugin / "__init__.py").write_text(source)
        where = {"path": str(plugin), "hermes_home": str(tmp_path / f"home-of-{name}")}
        deadline = 2.0 if name in HURRIED else 30.0
        memories[name] = {
            "provider": "hermes-plugin",
            "deadline_seconds": deadline,
            "read_back": False,
            **where,
            "serves": "everybody",
        }
    main = {"memories": list(memories), "recall": {"deadline_seconds": 2}, "tools": []}
    async with RunningGateway(tmp_path, json.dumps({"agents": {"main": main}, "memories": memories})) as t:
        for text in ("hello", "a bad thing", "a good thing"):
            began = time.monotonic()
            await t.send_and_wait(text)
            assert time.monotonic() - began < 8, "a turn waits no longer than recall may take"
        await t.wait_until(lambda: read_received(tmp_path, "well") == ["hello", "a bad thing", "a good thing"])

        async def settled() -> bool:
            rows = {row["memory"]: row for row in (await t.app.memory_admin.collect_status())["memories"]}
            # after the restart it reports for a moment that its process was killed
            blocked = "no answer" in rows["blocks"]["error"]
            delivered = not rows["raises"]["backlog"] and not rows["well"]["backlog"]
            return delivered and blocked and bool(rows["leaves"]["error"])

        await t.wait_until(settled)
        assert read_received(tmp_path, "raises") == ["hello", "a good thing"], (
            "a refused item becomes a dead letter, the others are delivered"
        )
        conditions = {row["memory"]: row for row in (await t.app.session_admin.collect_status())["memories"]}
        rows = {row["memory"]: row for row in (await t.app.memory_admin.collect_status())["memories"]}
        assert (rows["raises"]["dead_letters"], rows["well"]["dead_letters"]) == (1, 0)
        await t.wait_until(lambda: "did not return within 2 s" in t.log.getvalue())  # its process is killed with it
        assert "ended with 7" in conditions["leaves"]["error"]
        assert (conditions["blocks"]["state"], conditions["leaves"]["state"]) == ("failing", "failing")
        assert (conditions["well"]["state"], rows["well"]["sent"]) == ("healthy", 3)
        await t.wait_until(lambda: read_received(tmp_path, "floods") == ["hello", "a bad thing", "a good thing"])
        assert "x" * 10_000 not in t.log.getvalue(), "ten megabytes are no memory"
        await t.assert_sound()
        began = time.monotonic()
    assert time.monotonic() - began < 20, "nor does a stop"


@pytest.mark.prove
async def test_a_plugin_receives_every_session_switch_of_a_gateway(tmp_path: Path) -> None:
    plugin, home = tmp_path / "recorder", tmp_path / "hermes"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(RECORDER)
    memories = {"it": {"provider": "hermes-plugin", "path": str(plugin), "hermes_home": str(home)}}
    main = {"memories": ["it"], "recall": {"deadline_seconds": 5}, "review_every_turns": 0}
    config = {"agents": {"main": main}, "memories": memories}

    def read_calls(*hooks: str) -> list[list[object]]:
        file = home / "diary.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if line[0] in hooks]

    async with RunningGateway(tmp_path, json.dumps(config)) as t:
        await t.send_and_wait("/background sleep well")
        await t.wait_until_idle()
        assert read_calls("initialize", "prefetch", "sync_turn") == [], "jobs initialise no provider"
        first = (await t.send_message("my boat is called Berta")).session
        await t.wait_for_replies(first)
        await t.wait_until_idle()
        await t.send_and_wait("it is blue")
        await t.wait_until_idle()
        (name,) = {line[3] for line in read_calls("sync_turn")}
        heard = ("on_session_end", "on_session_switch", "on_pre_compress")
        turns: tuple[tuple[str, list[list[object]]], ...] = (
            ("/new", [["on_session_end", None], ["on_session_switch", name, name, True]]),
            ("/branch side", [["on_session_switch", None, name, False]]),
            (f"/resume {first}", [["on_session_switch", name, None, False]]),
        )
        for command, expected in turns:
            before = len(read_calls(*heard))
            await t.send_and_wait(command)
            enough = before + len(expected)
            await t.wait_until(lambda enough=enough: len(read_calls(*heard)) >= enough)  # type: ignore[misc]
            found = read_calls(*heard)[before:]
            assert [line[0] for line in found] == [line[0] for line in expected], command
            for line, seen in zip(expected, found, strict=True):
                given = {place: it for place, it in enumerate(line) if it is not None}
                assert given == {place: seen[place] for place in given}, command
            await t.send_and_wait(f"words after {command}")
            await t.wait_until_idle()
        await t.assert_sound()
