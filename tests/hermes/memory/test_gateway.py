"""Six plug-ins that each misbehave in their own way, attached to one real gateway: it notices in `status` alone."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.e2e.running_gateway import RunningGateway

from .harness import RECORDER
from .test_misbehaving import BLOCKS, FLOODS, LEAKS, LEAVES, RAISES, SHOUTS

ALL = {"raises": RAISES, "blocks": BLOCKS, "shouts": SHOUTS, "leaves": LEAVES, "leaks": LEAKS, "floods": FLOODS}
PATIENT = {"leaks", "floods"}
"""Who takes long and does no harm."""


def read_received(path: Path, name: str) -> list[str]:
    file = path / f"home-of-{name}" / "diary.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line[1] for line in lines if line[0] == "sync_turn"]


@pytest.mark.prove
async def test_whatever_plug_ins_do_the_chat_goes_on_and_the_status_tells(tmp_path: Path) -> None:
    memories = {}
    for name, source in {**ALL, "well": RECORDER}.items():
        plugin = tmp_path / name
        plugin.mkdir()
        (plugin / "__init__.py").write_text(source)
        where = {"path": str(plugin), "hermes_home": str(tmp_path / f"home-of-{name}")}
        deadline = 30.0 if name in PATIENT else 2.0
        memories[name] = {"provider": "hermes-plugin", "deadline_seconds": deadline, "read_back": False, **where}
    main = {"memories": list(memories), "recall": {"deadline_seconds": 2}, "tools": []}
    async with RunningGateway(tmp_path, json.dumps({"agents": {"main": main}, "memories": memories})) as t:
        for text in ("hello", "a bad thing", "a good thing"):
            began = time.monotonic()
            await t.send_and_wait(text)
            assert time.monotonic() - began < 8, "a turn waits for nobody longer than recall may take"
        await t.wait_until(lambda: read_received(tmp_path, "well") == ["hello", "a bad thing", "a good thing"])

        async def settled() -> bool:
            rows = {row["memory"]: row for row in (await t.app.memory_admin.collect_status())["memories"]}
            # once it is started again it says for a moment that its process was ended
            blocked = "no answer" in rows["blocks"]["error"]
            return not rows["raises"]["waiting"] and blocked and bool(rows["leaves"]["error"])

        await t.wait_until(settled)
        assert read_received(tmp_path, "raises") == ["hello", "a good thing"], (
            "what it refused is parked, the rest goes on"
        )
        conditions = {row["memory"]: row for row in (await t.app.session_admin.collect_status())["memories"]}
        rows = {row["memory"]: row for row in (await t.app.memory_admin.collect_status())["memories"]}
        assert (rows["raises"]["dead_letters"], rows["well"]["dead_letters"]) == (1, 0)
        await t.wait_until(lambda: "did not come back within 2 s" in t.log.getvalue())  # its process is ended with it
        assert "ended with 7" in conditions["leaves"]["error"]
        assert (conditions["blocks"]["state"], conditions["leaves"]["state"]) == ("failing", "failing")
        assert (conditions["well"]["state"], rows["well"]["handed_over"]) == ("well", 3)
        await t.wait_until(lambda: read_received(tmp_path, "floods") == ["hello", "a bad thing", "a good thing"])
        assert "x" * 10_000 not in t.log.getvalue(), "ten megabytes are no memory"
        await t.assert_sound()
        began = time.monotonic()
    assert time.monotonic() - began < 20, "nor does a stop"


@pytest.mark.prove
async def test_in_a_gateway_it_hears_of_every_turn_the_talk_takes(tmp_path: Path) -> None:
    plugin, home = tmp_path / "recorder", tmp_path / "hermes"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(RECORDER)
    memories = {"it": {"provider": "hermes-plugin", "path": str(plugin), "hermes_home": str(home)}}
    main = {"memories": ["it"], "recall": {"deadline_seconds": 5}, "review_every_turns": 0}
    config = {"agents": {"main": main}, "memories": memories}

    def diary(*hooks: str) -> list[list[object]]:
        file = home / "diary.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if line[0] in hooks]

    async with RunningGateway(tmp_path, json.dumps(config)) as t:
        await t.send_and_wait("/background sleep well")
        await t.wait_until_idle()
        assert diary("initialize", "prefetch", "sync_turn") == [], "jobs make nobody ready"
        first = (await t.send_message("my boat is called Berta")).session
        await t.wait_for_replies(first)
        await t.wait_until_idle()
        await t.send_and_wait("it is blue")
        await t.wait_until_idle()
        (name,) = {line[3] for line in diary("sync_turn")}
        heard = ("on_session_end", "on_session_switch", "on_pre_compress")
        turns: tuple[tuple[str, list[list[object]]], ...] = (
            ("/new", [["on_session_end", None], ["on_session_switch", name, name, True]]),
            ("/branch side", [["on_session_switch", None, name, False]]),
            (f"/resume {first}", [["on_session_switch", name, None, False]]),
        )
        for command, expected in turns:
            before = len(diary(*heard))
            await t.send_and_wait(command)
            await t.wait_until(
                lambda before=before, expected=expected: len(diary(*heard)) >= before + len(expected)  # type: ignore[misc]
            )
            found = diary(*heard)[before:]
            assert [line[0] for line in found] == [line[0] for line in expected], command
            for line, seen in zip(expected, found, strict=True):
                given = {place: it for place, it in enumerate(line) if it is not None}
                assert given == {place: seen[place] for place in given}, command
            await t.send_and_wait(f"words after {command}")
            await t.wait_until_idle()
        await t.assert_sound()
