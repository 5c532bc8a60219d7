"""`everhold memory` with and without a gateway, as text and JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from everhold.admin import memory_files
from tests.cli.command_home import CONFIG, CommandHome

CANARY = "zanzibar7391"


def hold_conversation(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text(
        CONFIG.replace("memories: [], tools: []", "memories: [builtin], recall: {deadline_seconds: 60}")
    )
    command_home.run("send", f"the password is {CANARY}").ok()
    command_home.run("memory", "note", f"{CANARY} again").ok()


def test_search_finds_a_memory_and_why_explains_an_answer(command_home: CommandHome) -> None:
    hold_conversation(command_home)
    found = command_home.run_in_process("memory", "search", CANARY, "--json").ok().json
    assert any(CANARY in item["text"] for item in found["memories"])
    assert {item["provider"] for item in found["memories"]} == {"builtin"}
    shown = command_home.run_in_process("memory", "search", CANARY)
    assert CANARY in shown.out
    assert command_home.run_in_process("memory", "search", CANARY, "--person", "somebody").code == 1
    assert command_home.run_in_process("memory", "search", CANARY, "--agent", "nobody").code != 0
    command_home.run("send", f"what was {CANARY} about?", "--session", "other").ok()
    why = command_home.run_in_process("memory", "why", "--json").ok().json
    assert any(CANARY in item["text"] for item in why["shown"])
    told = command_home.run_in_process("memory", "why").ok().out
    assert "recalled: builtin" in told
    assert f"recall budget: {why['tokens']} of {why['budget']} tokens used" in told
    status = command_home.run_in_process("memory", "status", "--json").ok().json
    assert [(row["agent"], row["memory"], row["dead_letters"]) for row in status["memories"]] == [
        ("main", "builtin", 0)
    ]
    assert (
        "builtin of main: by words" in command_home.run_in_process("memory", "status").ok().out
    )  # status shows the ranking mode with and without a gateway


def test_an_export_does_not_overwrite_another_export(tmp_path: Path) -> None:
    async def record(text: str) -> AsyncIterator[dict[str, Any]]:
        yield {"from": "log", "agent": "main", "body": {"text": text}}

    names = ("test:1", "test/1", "test-1", "/", ":")
    for name in names:
        asyncio.run(memory_files.write_export(record(f"of {name}"), name, tmp_path))
    written = [file.read_text() for file in tmp_path.glob("*.jsonl")]
    assert sorted(name for name in names for text in written if f'"of {name}"' in text) == sorted(names)


def test_a_person_is_exported_and_forgotten(command_home: CommandHome, tmp_path: Path) -> None:
    hold_conversation(command_home)
    person = command_home.run_in_process("memory", "search", CANARY, "--json").ok().json["person"]
    made = command_home.run_in_process("memory", "export", person, "--to", str(tmp_path / "out"), "--json").ok().json
    folders = {tmp_path / "out", *(Path(file).parent for file in made["files"])}
    assert {oct(folder.stat().st_mode & 0o777) for folder in folders} == {"0o700"}
    assert {oct(Path(file).stat().st_mode & 0o777) for file in made["files"]} == {"0o600"}
    lines, pages = map(Path, made["files"])
    assert made["records"] == 3
    assert [json.loads(line)["kind"] for line in lines.read_text().splitlines()] == ["heard", "said", "noted"]
    assert pages.read_text().count(CANARY) == 3
    assert lines.stat().st_mode & 0o777 == 0o600

    plan = command_home.run_in_process("memory", "forget", person).ok()
    assert "would be erased" in plan.out
    assert "--yes" in plan.err
    assert holding(command_home.path)
    done = command_home.run_in_process("memory", "forget", person, "--yes", "--json").ok().json
    assert done["done"] is True
    assert done["entries"] >= 4
    assert holding(command_home.path) == []
    command_home.run_in_process("audit").ok()
    assert command_home.run_in_process("memory", "search", CANARY).code == 1


def test_forget_works_through_a_running_gateway(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text(
        CONFIG.replace("memories: [], tools: []", "memories: [builtin], recall: {deadline_seconds: 60}")
        + "backup: {every_hours: 0}\n"  # a backup made before the erasure contains the text
    )
    gateway = command_home.start_gateway()
    hold_conversation(command_home)
    person = command_home.run_in_process("memory", "search", CANARY, "--json").ok().json["person"]
    assert command_home.run_in_process("memory", "forget", person, "--yes").ok().out
    gateway.kill()
    assert holding(command_home.path) == []
    command_home.run_in_process("audit").ok()


def test_an_unknown_person_is_reported(command_home: CommandHome, tmp_path: Path) -> None:
    hold_conversation(command_home)
    assert command_home.run_in_process("memory", "forget", "").code != 0
    plan = command_home.run_in_process("memory", "forget", "stranger", "--json").ok().json
    assert plan["sessions"] == []
    assert plan["entries"] == 0
    told = command_home.run_in_process("memory", "forget", "stranger").ok()
    assert "0 entries in total" in told.out
    assert "Is the name right?" in told.err
    export = command_home.run_in_process("memory", "export", "stranger", "--to", str(tmp_path / "out"))
    assert export.code == 1
    assert "Is the name right?" in export.err
    assert list((tmp_path / "out").iterdir()) == []


def holding(home: Path) -> list[str]:
    return [str(file) for file in home.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]


def test_memory_files_are_imported_once(command_home: CommandHome, tmp_path: Path) -> None:
    (command_home.path / "config.yaml").write_text(
        CONFIG.replace("memories: [], tools: []", "memories: [builtin], recall: {deadline_seconds: 60}")
    )
    command_home.run("send", "hello").ok()
    (tmp_path / "USER.md").write_text("likes tea\n§\nhas a cat\n")
    dry = command_home.run_in_process("memory", "import", str(tmp_path / "USER.md"), "--dry-run").ok()
    assert "2 facts and 0 notes in 1 file" in dry.out
    assert command_home.run_in_process("memory", "import", str(tmp_path / "USER.md"), "--json").ok().json["noted"] == 2
    assert command_home.run_in_process("memory", "import", str(tmp_path / "USER.md"), "--json").ok().json["noted"] == 0
    person = command_home.run_in_process("memory", "search", "tea", "--json").ok().json["person"]
    made = command_home.run_in_process("memory", "export", person, "--to", str(tmp_path / "out"), "--json").ok().json
    assert (tmp_path / "out" / "main" / "USER.md").read_text() == (tmp_path / "USER.md").read_text()
    assert len(made["files"]) == 3


def test_an_operator_accepts_what_cannot_be_deleted(command_home: CommandHome) -> None:
    hold_conversation(command_home)
    person = command_home.run_in_process("memory", "search", CANARY, "--json").ok().json["person"]
    command_home.run_in_process("backup").ok()
    refused = command_home.run_in_process("memory", "forget", person, "--yes", "--json")
    assert (refused.code, refused.json["state"]) == (1, "cannot"), "a backup contains it"
    listed = command_home.run_in_process("memory", "erasures", "--json")
    (erasure,) = listed.json["erasures"]
    (backups,) = [it for it in erasure["places"] if it["place"] == "backups"]
    assert (listed.code, backups["state"], backups["until"] > erasure["at"]) == (1, "cannot", True)
    assert "is replaced on 20" in command_home.run_in_process("memory", "erasures").out
    nothing = command_home.run_in_process("memory", "erasures", "--accept", erasure["id"])
    assert nothing.code != 0
    assert "nothing of this forgetting" in nothing.err
    unknown = command_home.run_in_process("memory", "erasures", "--accept", "nonsense")
    assert "there is no forgetting" in unknown.err
