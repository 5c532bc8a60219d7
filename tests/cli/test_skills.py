"""`everhold skills`, and how a running gateway offers what was installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everhold.core.entries import Returned, ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.cli.command_home import CommandHome
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section
from tests.infra.test_skills import make_skill


def test_a_skill_is_installed_listed_shown_and_checked(command_home: CommandHome, tmp_path: Path) -> None:
    (command_home.path / "config.yaml").write_text("agents: {main: {tools: [skill]}, other: {tools: []}}\n")
    folder = make_skill(tmp_path, "pdf-forms", form="a form")
    done = command_home.run_in_process("skills", "add", str(folder), "--json").ok().json
    assert done["path"] == str(command_home.path / "skills" / "pdf-forms")
    (row,) = command_home.run_in_process("skills", "list", "--json").ok().json["skills"]
    assert (row["name"], row["source"], row["agents"]) == ("pdf-forms", "home", ["main"])
    shown = command_home.run_in_process("skills", "show", "pdf-forms", "--json").ok().json
    assert (shown["files"], shown["digest"]) == (["form.txt"], row["digest"])
    assert "Do it like this." in command_home.run_in_process("skills", "show", "pdf-forms").ok().out
    assert command_home.run_in_process("skills", "check", "--json").ok().json["ok"]
    again = command_home.run_in_process("skills", "add", str(folder))
    assert (again.code, "--replace" in again.err) == (2, True)
    command_home.run_in_process("skills", "add", str(folder), "--replace").ok()


def test_what_is_refused_is_named_and_nothing_is_installed(command_home: CommandHome, tmp_path: Path) -> None:
    folder = make_skill(tmp_path, "evil")
    (folder / "leak").symlink_to("/etc/passwd")
    done = command_home.run_in_process("skills", "add", str(folder))
    assert done.code == 2
    assert "leak is a symbolic link" in done.err
    assert command_home.run_in_process("skills", "add", str(tmp_path)).code != 0
    assert command_home.run_in_process("skills", "add", str(folder), "--agent", "nobody").code == 1
    assert not list((command_home.path).glob("skills/*"))
    make_skill(command_home.path / "skills", "broken", "no front matter")
    checked = command_home.run_in_process("skills", "check", "--json")
    assert (checked.code, checked.json["problems"][0]["path"]) == (1, "broken/SKILL.md")


@pytest.mark.parametrize("tools, offered", [(["skill"], True), ([], False)])
async def test_a_skill_is_offered_by_its_description_and_loaded_on_demand(
    tmp_path: Path, tools: list[str], offered: bool
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    make_skill(home / "skills", "for-all")
    make_skill(home / "agents" / "main" / "skills", "for-main")
    make_skill(home / "agents" / "other" / "skills", "for-other")
    make_skill(home / "skills", "left-out")
    agent = {"tools": tools, "memories": [], "model": "m", "skills": ["for-*"]}
    async with ModelServer(key=KEY) as server:
        models = {"m": make_model_section(server.openai)}
        text = json.dumps({"models": models, "agents": {"main": agent}, "backup": {"every_hours": 0}})
        async with RunningGateway(tmp_path, text) as gateway:
            call = ToolCall(id="1", tool="skill", arguments={"name": "for-all"})
            server.add_steps(ModelServerReply(calls=(call,)), ModelServerReply(text="done"))
            session = (await gateway.send_message("do it")).session
            assert await gateway.wait_for_replies(session) == ["done"]
            (returned,) = await gateway.read_bodies(session, Returned)
            specs = [tool["function"] for tool in server.requests[0].json.get("tools", ())]
            assert [spec["name"] for spec in specs] == (["skill"] if offered else [])
            if offered:
                assert "- for-all: Does for-all.\n- for-main: Does for-main." in specs[0]["description"]
                assert "for-other" not in specs[0]["description"]
                assert "left-out" not in specs[0]["description"]
            assert ("Do it like this." in returned.text) is offered
            await gateway.assert_sound()
