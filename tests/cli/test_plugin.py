"""`everhold plugin`: list, new and test."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from everhold.cli.main import run_command as main
from everhold.core.builtin_tools import BUILTIN_TOOLS, SELECTABLE_TOOLS
from everhold.core.entries import ToolCall
from everhold.testing.conformance import CHECKS, run_checks_virtually
from everhold.testing.model_server import ModelServer, ModelServerReply
from everhold.testing.plugin_context import make_plugin_context
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section
from tests.hermes.memory.test_isolation import LEAKING, NOTEBOOK
from tests.hermes.memory.test_readback import KEEPER
from tests.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
TIN = ROOT / "tests" / "thirdparty" / "everhold-tin"
FILE_TOOLS = {"file_read", "file_list", "file_search", "file_write", "file_edit"}
"""What `files` gives an agent. No tool has that name itself."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory. Modules imported from it are unloaded afterwards."""
    monkeypatch.chdir(tmp_path)
    before, known = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before
    for name in set(sys.modules) - known:
        if name.startswith("everhold_") or name == "bad":
            del sys.modules[name]


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, Any]:
    """Return a command's exit code and its JSON."""
    code = main([*args, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out)


def test_list_names_every_plugin_with_its_package(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, "plugin", "list")
    assert code == 0
    kinds = {(it["kind"], it["name"]): it["package"] for it in found["plugins"]}
    assert kinds["memories", "builtin"] == kinds["models", "offline"] == "everhold"


def test_a_new_plugin_skeleton_passes_all_checks(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, written = run(capsys, "plugin", "new", "memory", "note-book")
    assert code == 0
    assert "everhold_note_book/__init__.py" in written["files"]
    sys.path.insert(0, str(here / "everhold-note-book"))
    from everhold_note_book import NoteBook, Settings  # type: ignore[import-not-found]

    outcomes = run_checks_virtually(
        lambda agent, path: NoteBook(Settings(), make_plugin_context(agent=agent, directory=path)), here / "x"
    )
    assert {it.check for it in outcomes} == set(CHECKS)
    assert [it for it in outcomes if it.state == "failed"] == []
    assert [it.check for it in outcomes if it.state == "skipped"] == ["order", "signature", "service-outage"]


def test_plugin_test_exits_0_for_a_correct_plugin_and_1_for_a_wrong_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugin", "new", "memory", "shelf", "--in", "."]) == 0
    target, only = "everhold_shelf:Shelf", ("--only", "basics", "--only", "restart")
    capsys.readouterr()
    code, found = run(capsys, "plugin", "test", target, *only, "--set", "most=9", "--patience", "0.1")
    assert (code, [it["state"] for it in found["checks"]]) == (0, ["passed", "passed"])
    file = here / "everhold_shelf" / "__init__.py"
    (here / "bad.py").write_text(file.read_text().replace('Path(context.directory) / "shelf.db"', '":memory:"'))
    code, found = run(capsys, "plugin", "test", "bad:Shelf", *only, "--patience", "0.1")
    assert (code, [it["state"] for it in found["checks"]]) == (1, ["passed", "failed"])
    assert "found never" in found["checks"][1]["reason"]
    assert main(["plugin", "test", "bad:Shelf", "--only", "basics"]) == 0
    assert re.search(r"✓ basics +Stored items are found with their own text", capsys.readouterr().out)


def test_a_third_party_plug_in_is_tested_by_its_path(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A provider that loses its data at the end of its process fails the check for that."""
    plugin = here / "keeper"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(KEEPER)
    only = ("--only", "basics", "--only", "restart", "--only", "duplicates")
    code, found = run(
        capsys, "plugin", "test", f"hermes-plugin:{plugin}", *only, "--patience", "0.5", "--seconds", "60"
    )
    assert (code, [it["state"] for it in found["checks"]]) == (1, ["passed", "failed", "skipped"])
    assert "unacknowledged" in found["checks"][2]["reason"]


@pytest.mark.parametrize("source, state", [(NOTEBOOK, "passed"), (LEAKING, "failed")], ids=["apart", "leaks"])
def test_the_canary_finds_a_plug_in_that_shows_one_person_s_words_to_another(
    here: Path, capsys: pytest.CaptureFixture[str], source: str, state: str
) -> None:
    plugin = here / "notebook"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(source)
    kept = ("--set", f'environ={{"KEPT": "{here}/everybody.txt"}}', "--set", "sandbox=none")
    code, found = run(capsys, "plugin", "test", f"hermes-plugin:{plugin}", "--only", "canary", "--seconds", "60", *kept)
    (outcome,) = found["checks"]
    assert (outcome["state"], code) == (state, int(state == "failed")), outcome
    assert state == "passed" or "it showed one person's words to another" in outcome["reason"]


def test_an_unusable_plugin_is_reported_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = here / "odd"
    plugin.mkdir()
    (plugin / "__init__.py").write_text("import nowhere_to_be_found")
    assert main(["plugin", "test", "hermes-plugin:./odd"]) != 0
    told = capsys.readouterr()
    assert told.err.count("nowhere_to_be_found") == 1
    assert told.out == ""


@pytest.mark.parametrize(
    "args, code, says",
    [
        (("plugin", "test", "nowhere"), 1, "there is no memory provider 'nowhere'"),
        (("plugin", "test", "everhold_shelf:Shelf", "--set", "moist=1"), 78, "did you mean `most`?"),
        (("plugin", "test", "everhold_shelf:Shelf", "--set", "most"), 2, "is not K=V"),
        (("plugin", "test", "everhold_shelf:Shelf", "--set", "key_env=NOT_SET"), 2, "NOT_SET is not set"),
        (("plugin", "test", "everhold_shelf:Shelf", "--only", "magic"), 1, "there is no check 'magic'"),
        (("plugin", "new", "memory", "Bad Name"), 2, "is not a name"),
        (("plugin", "new", "memory", "again", "--in", "."), 2, "is not empty"),
        (("plugin", "new", "platform", "telegram"), 2, "everhold already offers a platform 'telegram'"),
        (("plugin", "new", "memory", "honcho"), 2, "everhold already offers a memory provider 'honcho'"),
        (("plugin", "new", "platform", "a--b"), 2, "is not a name"),
        (("plugin", "test", "nowhere:Shelf"), 2, "memories: 'nowhere:Shelf' cannot be loaded"),
    ],
)
def test_invalid_arguments_are_refused_with_a_remedy(
    here: Path, capsys: pytest.CaptureFixture[str], args: Sequence[str], code: int, says: str
) -> None:
    assert main(["plugin", "new", "memory", "shelf", "--in", "."]) == 0
    assert main(args) == code
    told = capsys.readouterr().err
    assert says in told
    assert "→" in told


# -- C4: a third-party package -----------------------------------------------------------------------------------------


def wheel_of(package: Path, to: Path) -> Path:
    """Build a wheel of a package."""
    build = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(to)],
        cwd=package,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    )
    return to / done.stdout.strip().splitlines()[-1]


def package_of(name: str, here: Path) -> Path:
    """Create a third-party package: a hand-written one, or the one of `plugin new`."""
    if name == "tin":
        return Path(shutil.copytree(TIN, here / "everhold-tin"))
    assert main(["plugin", "new", "memory", name]) == 0
    return here / f"everhold-{name}"


@pytest.mark.parametrize("name", ["tin", "foreign"])
async def test_an_installed_third_party_memory_works_by_its_name(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    wheel = wheel_of(package_of(name, here), here)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(here / "site")
    monkeypatch.syspath_prepend(str(here / "site"))
    config = {
        "defaults": {"tools": [], "memories": [name], "recall": {"deadline_seconds": 60}},
        "memories": {name: {"most": 5}},
    }
    async with RunningGateway(here, json.dumps(config)) as t:
        verdict = await t.send_message("My goat is called Berta.")
        await t.wait_for_replies(verdict.session)
        await t.wait_until_idle()
        await t.send_message("/new")
        answer = await t.send_and_wait("What is my goat called?", chat="another")
        assert "Berta" in answer
        await t.wait_until_idle()
        (memory,) = (await t.app.session_admin.collect_status())["memories"]
        assert (memory["memory"], memory["state"], memory["backlog"]) == (name, "healthy", 0)
        assert not t.app.describe()["problems"]


async def test_a_third_party_tool_is_offered_and_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(shutil.copytree(TIN.with_name("everhold-dice"), here / "everhold-dice"))
    with zipfile.ZipFile(wheel_of(package, here)) as packed:
        packed.extractall(here / "site")
    monkeypatch.syspath_prepend(str(here / "site"))
    async with ModelServer(key=KEY) as server:
        config: dict[str, Any] = {
            "models": {"m": make_model_section(server.openai)},
            "defaults": {"tools": ["attach", "big"], "memories": []},
            "tools": {"big": {"provider": "dice", "sides": 20, "seal_env": "MODEL_KEY"}},
            "agents": {"main": {}, "other": {"tools": ["dice", "big"]}},
            "policy": {"rules": [{"tool": "roll", "do": "allow"}]},
        }
        async with RunningGateway(here, json.dumps(config)) as t:
            server.add_steps(ModelServerReply(calls=(ToolCall(id="c", tool="roll"),)), ModelServerReply(text="Twenty."))
            assert await t.send_and_wait("roll it", agent="main") == "Twenty."
            assert '"20 of big for main, sealed"' in server.requests[1].body.decode()
            assert (here / "home" / "tools" / "big" / "main").is_dir()
            assert not t.app.describe()["problems"]
            # two tools have one name: the first keeps it, and the other is reported
            assert t.app.agents.get_runtime("other", {}).tools["roll"].deadline == 6.0
            (problem,) = t.app.describe()["problems"]
            assert (problem["key"], "another tool is already called roll" in problem["message"]) == ("tools.big", True)
            config["tools"]["big"]["sides"] = "many"
            t.configure(json.dumps(config))
            server.add_steps(ModelServerReply(text="As before."))
            assert await t.send_and_wait("and now?", agent="main") == "As before."
            assert [it["key"] for it in t.app.describe()["refused"]] == ["tools.big.sides"]


@pytest.mark.parametrize("wrong, says", [("raise OSError('no dice')", "no dice"), ("return 3", "is not a tool")])
async def test_a_tool_that_cannot_be_built_disables_only_itself(
    here: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, says: str
) -> None:
    (here / "everhold_bent.py").write_text(
        f"import pydantic\nclass Bent:\n    class Settings(pydantic.BaseModel): pass\n"
        f"    def __new__(cls, settings, context):\n        {wrong}\n"
    )
    monkeypatch.syspath_prepend(str(here))
    async with RunningGateway(here, json.dumps({"defaults": {"tools": ["everhold_bent:Bent", "nowhere"]}})) as t:
        assert await t.send_and_wait("hello")
        problems = {it["key"]: it["message"] for it in t.app.describe()["problems"]}
        assert says in problems["tools.everhold_bent:Bent"]
        assert [key for key, text in problems.items() if "no tool 'nowhere'" in text] == ["defaults.tools[1]"]


async def test_every_selectable_tool_is_built_under_its_name(here: Path) -> None:
    agents = {name: {"tools": [name], "send_to": ["agent:send"] if name == "send" else []} for name in SELECTABLE_TOOLS}
    skill = here / "home" / "skills" / "greet"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(
        "---\nname: greet\ndescription: Greets somebody.\n---\nSay hello.\n", encoding="utf-8"
    )
    config = {"agents": agents, "search": {"provider": "searxng", "url": "http://127.0.0.1:9"}}
    async with RunningGateway(here, json.dumps(config)) as t:
        for name in SELECTABLE_TOOLS:
            own = FILE_TOOLS if name == "files" else {name}
            assert own <= t.app.agents.get_runtime(name, {}).tools.keys()
        built = {tool for name in SELECTABLE_TOOLS for tool in t.app.agents.get_runtime(name, {}).tools}
        listed = {tool.name for tool in BUILTIN_TOOLS} - {"files"}
        assert built == listed, "the table lists every built-in tool, and no other"
        assert not t.app.describe()["problems"]


@pytest.mark.prove
@pytest.mark.parametrize("name, version", [("tin", "0.3.0"), ("foreign", "0.1.0")])
def test_an_installed_package_works_in_a_fresh_environment(here: Path, name: str, version: str) -> None:
    """pip installs everhold and a third-party package into a new environment that has the dependencies."""
    wheels = [wheel_of(ROOT, here), wheel_of(package_of(name, here), here)]
    venv.create(here / "env", with_pip=True)
    python = here / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *wheels], check=True, timeout=600)
    everhold = here / "env" / "bin" / "everhold"
    environ = {**os.environ, "EVERHOLD_HOME": str(here / "home"), "PYTHONPATH": ""}
    home = here / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(f"defaults: {{memories: [{name}]}}\nmemories: {{{name}: {{most: 5}}}}\n")

    def call(*args: str) -> str:
        done = subprocess.run(
            [everhold, *args], env=environ, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert f"everhold-{name} {version}" in call("plugin", "list")
    assert "failed" not in call("plugin", "test", name, "--seconds", "0.5")
    call("send", "My goat is called Berta.", "--session", "one")
    assert "Berta" in call("send", "What is my goat called?", "--session", "two")
    assert not list((here / "env").glob("lib/python*/site-packages/*everhold*.pth")), "nothing of ours is borrowed"
