"""The file tools: what they read and write, their limits, and that no path and no link leads out of the workspace."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Stamp
from everhold.core.policy import ToolReach
from everhold.errors import EverholdError
from everhold.infra.workspace import MAX_PATH_PARTS, WorkspaceFolder, WriteIntents, compute_file_digest
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult, get_reach
from everhold.tools import files
from everhold.tools.files import build_file_tools
from tests.ingress.harness import ManualClock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="paths cannot be opened without links there")


class FileBench:
    """A workspace with its tools, beside a file that no tool may reach."""

    def __init__(self, path: Path) -> None:
        self.root = path / "workspace"
        self.root.mkdir()
        self.secret = path / "secret"
        self.secret.write_text("the secret")
        self.clock = ManualClock()
        self.intents = WriteIntents(path / "intents")
        self.tools: dict[str, Tool] = build_file_tools(self._find, self.intents, self.clock)

    async def _find(self, context: ToolContext) -> Path:
        return self.root

    def context(self, key: str = "k") -> ToolContext:
        return ToolContext(session="s", agent="main", op=1, key=key, stamp=Stamp())

    async def call(self, tool: str, *, key: str = "k", **arguments: Any) -> ToolResult:
        return await self.tools[tool].run(arguments, self.context(key))

    async def read(self, tool: str, **arguments: Any) -> str:
        return (await self.call(tool, **arguments)).text

    async def refuse(self, tool: str, **arguments: Any) -> EverholdError:
        """Call a tool that must refuse; return the error."""
        with pytest.raises(EverholdError) as caught:
            await self.call(tool, **arguments)
        assert caught.value.remedy, "the error names a remedy"
        return caught.value


@pytest.fixture
def bench(tmp_path: Path) -> FileBench:
    return FileBench(tmp_path)


# -- what they do ------------------------------------------------------------------------------------------------------


async def test_a_file_is_written_read_edited_listed_and_found(bench: FileBench) -> None:
    text = await bench.read("file_write", path="notes/a.txt", text="one\ntwo\nthree\n")
    assert text.startswith("Wrote notes/a.txt, 14 characters")
    shown = await bench.read("file_read", path="notes/a.txt")
    assert shown.splitlines()[1:] == ["one", "two", "three"]
    digest = shown.splitlines()[0].rpartition(" ")[2]
    assert digest in text
    assert compute_file_digest(b"one\ntwo\nthree\n").startswith(digest)
    await bench.call("file_edit", path="notes/a.txt", old="two", new="2", expect=digest)
    assert (bench.root / "notes/a.txt").read_text() == "one\n2\nthree\n"
    assert await bench.read("file_list") == "notes/\nnotes/a.txt (12 bytes)"
    assert await bench.read("file_list", glob="*.py") == "There is no such file in the workspace."
    assert await bench.read("file_search", pattern="^t.*e$") == "notes/a.txt:3: three"
    assert await bench.read("file_search", pattern="nothing like it") == "Nothing was found."
    await bench.call("file_write", path="notes/a.txt", text="")
    assert (bench.root / "notes/a.txt").read_bytes() == b""


async def test_a_long_file_is_read_in_parts(bench: FileBench) -> None:
    (bench.root / "long").write_text("".join(f"line {number}\n" for number in range(1, 5_001)))
    first = await bench.read("file_read", path="long")
    assert "shown 1 to 2000; continue with offset 2001" in first
    last = await bench.read("file_read", path="long", offset=4_001)
    assert "shown 4001 to 5000 ·" in last
    assert last.endswith("line 5000")
    (bench.root / "wide").write_text("x" * 100_000)
    assert len(await bench.read("file_read", path="wide")) < 3_000
    assert "5,000 lines" in str(await bench.refuse("file_read", path="long", offset=5_001))


async def test_an_edit_needs_one_place_or_all(bench: FileBench) -> None:
    (bench.root / "a").write_text("x x x")
    assert "occurs 3 times" in str(await bench.refuse("file_edit", path="a", old="x", new="y"))
    assert "does not occur" in str(await bench.refuse("file_edit", path="a", old="z", new="y"))
    assert (await bench.read("file_edit", path="a", old="x", new="y", all=True)).startswith("Replaced 3 of 3")
    assert (bench.root / "a").read_text() == "y y y"
    assert "no file" in str(await bench.refuse("file_edit", path="b", old="x", new="y"))


@pytest.mark.parametrize("tool", ["file_write", "file_edit"])
async def test_a_file_that_changed_since_it_was_read_is_not_overwritten(bench: FileBench, tool: str) -> None:
    (bench.root / "a").write_text("mine")
    more = {"text": "yours"} if tool == "file_write" else {"old": "mine", "new": "yours"}
    for expect in ("", "0" * 12, compute_file_digest(b"other")[:12]):
        assert "changed since you read it" in str(await bench.refuse(tool, path="a", expect=expect, **more))
    assert (bench.root / "a").read_text() == "mine"
    await bench.call(tool, path="a", expect=compute_file_digest(b"mine")[:12], **more)
    assert (bench.root / "a").read_text() == "yours"


async def test_each_tool_says_what_it_reaches_and_what_a_repeat_does(bench: FileBench) -> None:
    said = {name: (get_reach(tool, {}), tool.effect) for name, tool in bench.tools.items()}
    reading, writing = (ToolReach.PRIVATE, ToolEffect.PURE), (ToolReach.CHANGE, ToolEffect.PROBE)
    assert said == {
        "file_read": reading,
        "file_list": reading,
        "file_search": reading,
        "file_write": writing,
        "file_edit": writing,
    }


# -- out of the workspace ----------------------------------------------------------------------------------------------


OUTSIDE_PATHS = ["/etc/passwd", "../secret", "a/../../secret", "~/.ssh/id_rsa", "..", "a/..", "x\0y", "d/" * 40 + "x"]


@pytest.mark.parametrize("path", OUTSIDE_PATHS)
async def test_no_path_leads_out_of_the_workspace(bench: FileBench, path: str) -> None:
    await bench.refuse("file_read", path=path)
    await bench.refuse("file_write", path=path, text="x")
    await bench.refuse("file_edit", path=path, old="the", new="a")
    await bench.refuse("file_list", path=path)
    await bench.refuse("file_search", path=path, pattern="secret")
    assert bench.secret.read_text() == "the secret"


def link_file(bench: FileBench) -> str:
    (bench.root / "link").symlink_to(bench.secret)
    return "link"


def link_folder(bench: FileBench) -> str:
    (bench.root / "folder").symlink_to(bench.root.parent)
    return "folder/secret"


def link_below(bench: FileBench) -> str:
    (bench.root / "a").mkdir()
    (bench.root / "a" / "b").symlink_to("../..")
    return "a/b/secret"


@pytest.mark.parametrize("make_link", [link_file, link_folder, link_below])
async def test_no_link_is_followed(bench: FileBench, make_link: Callable[[FileBench], str]) -> None:
    path = make_link(bench)
    assert "link" in str(await bench.refuse("file_read", path=path))
    await bench.refuse("file_write", path=path, text="x")
    await bench.refuse("file_edit", path=path, old="the", new="a")
    assert "secret" not in await bench.read("file_list")
    assert await bench.read("file_search", pattern="the secret") == "Nothing was found."
    assert bench.secret.read_text() == "the secret"


async def test_a_folder_that_becomes_a_link_while_it_is_walked_leads_nowhere(
    bench: FileBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.root / "a").mkdir()
    (bench.root / "a" / "secret").write_text("mine")
    real = os.open

    def swap(path: Any, *more: Any, **named: Any) -> int:
        if path == "a" and not (bench.root / "a").is_symlink():
            (bench.root / "a").rename(bench.root / "gone")
            (bench.root / "a").symlink_to(bench.root.parent)
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", swap)
    await bench.refuse("file_read", path="a/secret")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.mkdir()])
async def test_what_is_no_ordinary_file_is_refused_at_once(bench: FileBench, make: Callable[[Path], None]) -> None:
    make(bench.root / "odd")
    await bench.refuse("file_read", path="odd")
    await bench.refuse("file_write", path="odd", text="x")


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_large_and_binary_files_are_refused(bench: FileBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_READ_BYTES", 1_000)
    monkeypatch.setattr(files, "MAX_WRITE_BYTES", 1_000)
    (bench.root / "large").write_bytes(b"x" * 1_001)
    (bench.root / "binary").write_bytes(b"a\0b")
    assert "1,000 bytes" in str(await bench.refuse("file_read", path="large"))
    assert "not a text" in str(await bench.refuse("file_read", path="binary"))
    assert "1,000" in str(await bench.refuse("file_write", path="new", text="x" * 1_001))
    (bench.root / "grows").write_text("x" * 900)
    assert "1,000" in str(await bench.refuse("file_edit", path="grows", old="x", new="yy", all=True))
    assert not (bench.root / "new").exists()


async def test_many_names_and_hits_are_cut_off(bench: FileBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_NAMES", 3)
    monkeypatch.setattr(files, "MAX_HITS", 2)
    for number in range(5):
        (bench.root / f"f{number}").write_text("word")
    listed = (await bench.read("file_list")).splitlines()
    assert (len(listed), listed[-1].startswith("… more than 3")) == (4, True)
    found = (await bench.read("file_search", pattern="word")).splitlines()
    assert (len(found), found[-1].startswith("… more than 2")) == (3, True)


async def test_an_expression_that_never_ends_is_ended(bench: FileBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SEARCH_SECONDS", 0.5)
    (bench.root / "a").write_text("a" * 60 + "!")
    assert "was ended" in str(await bench.refuse("file_search", pattern="(a+)+$"))
    assert "no regular expression" in str(await bench.refuse("file_search", pattern="("))


WRONG_ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("file_read", {}),
    ("file_read", {"path": 3}),
    ("file_read", {"path": ""}),
    ("file_read", {"path": "a", "offset": "x"}),
    ("file_write", {"path": "a"}),
    ("file_write", {"path": "a", "text": ["x"]}),
    ("file_edit", {"path": "a", "old": "", "new": "x"}),
    ("file_search", {"pattern": None}),
    ("file_list", {"glob": 1}),
]


@pytest.mark.parametrize("tool, arguments", WRONG_ARGUMENTS)
async def test_wrong_arguments_get_an_answer(bench: FileBench, tool: str, arguments: dict[str, Any]) -> None:
    (bench.root / "a").write_text("x")
    await bench.refuse(tool, **arguments)


# -- a crash -----------------------------------------------------------------------------------------------------------


async def probe(bench: FileBench, tool: str = "file_write", key: str = "k") -> ToolResult | None:
    return await bench.tools[tool].probe(bench.context(key))


async def test_after_a_crash_it_is_known_whether_a_write_was_done(
    bench: FileBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.root / "a").write_text("before")
    assert await probe(bench) is None, "nothing was intended"

    def die(self: WorkspaceFolder, path: str, data: bytes) -> None:
        raise RuntimeError("the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(WorkspaceFolder, "write_file", die)
        with pytest.raises(RuntimeError):
            await bench.call("file_write", path="a", text="after")
    assert await probe(bench) is None, "it was intended and not done"
    await bench.call("file_write", path="a", text="after")
    done = await probe(bench)
    assert done is not None
    assert "was written before a restart" in done.text
    (bench.root / "a").write_text("somebody else")
    changed = await probe(bench)
    assert changed is not None
    assert changed.error
    assert await probe(bench, key="another call") is None


async def test_a_write_leaves_the_old_or_the_new_file_and_no_other(
    bench: FileBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.root / "a").write_text("before")

    def fail(*more: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises((EverholdError, OSError)):
        await bench.call("file_write", path="a", text="after")
    assert (bench.root / "a").read_text() == "before"
    assert [path.name for path in bench.root.iterdir()] == ["a"]


async def test_old_intents_are_deleted(bench: FileBench) -> None:
    bench.clock.at = 2_000_000_000.0
    await bench.call("file_write", path="a", text="x", key="old")
    for file in bench.intents.directory.iterdir():
        os.utime(file, (bench.clock.at, bench.clock.at))
    bench.clock.at += 31 * 86_400
    await bench.call("file_write", path="a", text="y", key="new")
    assert bench.intents.find("old") is None
    assert bench.intents.find("new") is not None


def test_the_depth_of_a_path_is_limited() -> None:
    assert MAX_PATH_PARTS < 40
