"""Implementations of the ports by other authors pass the type checker and run.

The files beside this one are written like the code of another author. mypy checks them strictly and without our
configuration. A line that must fail has an ignore, and an ignore that is not needed is an error.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from everhold import (
    ChatLocation,
    DeliveryGuarantee,
    MemoryBatch,
    MemoryNote,
    MemoryQuery,
    ModelMessage,
    ModelRequest,
    OutgoingMessage,
    Stamp,
    ToolCall,
    ToolContext,
    ToolEffect,
)
from everhold.core.entries import Returned
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway
from tests.typing.memory import NotebookProvider
from tests.typing.model import EchoModel
from tests.typing.platform import ListPlatform
from tests.typing.tool import RingTool

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
AUTHOR_FILES = sorted(path for path in HERE.glob("*.py") if not path.name.startswith("test_"))


def mypy(*files: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--explicit-package-bases",
        f"--cache-dir={cache}",
    ]
    return subprocess.run(
        [*command, *map(str, files)], capture_output=True, text=True, check=False, cwd=ROOT, env={"MYPYPATH": "src:."}
    )


@pytest.mark.prove
@pytest.mark.timeout(300)
def test_implementations_of_the_ports_pass_the_type_checker(tmp_path: Path) -> None:
    cache = ROOT / ".mypy_cache" / "authors"
    done = mypy(*AUTHOR_FILES, cache=cache)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(AUTHOR_FILES)} source files" in done.stdout
    # and the check itself can fail
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from everhold import Model\n\nmodel: Model = object()\n")
    found = mypy(wrong, cache=cache)
    assert found.returncode == 1
    assert "[assignment]" in found.stdout


def test_everhold_is_marked_as_typed() -> None:
    assert (ROOT / "src" / "everhold" / "py.typed").exists()


def test_implementations_of_the_ports_run_in_a_gateway(tmp_path: Path) -> None:
    gateway = InProcessGateway(tmp_path)
    ring_tool, notebook, platform = RingTool(), NotebookProvider(), ListPlatform(["ring"])
    gateway.runtimes.tools = {"ring": ring_tool}
    gateway.runtimes.memories = {"notes": notebook}
    gateway.runtimes.platforms[("post", "main")] = platform
    gateway.runtimes.model = _as_scripted(EchoModel())
    with gateway.run_started():
        assert gateway.process is not None
        gateway.run(platform.listen(gateway.process.accept))
        gateway.run_until_idle()
        session = platform.results[0].session
        assert [body.text for body in gateway.read_bodies(session, Returned)] == ["it rang"]
        assert list(platform.sent.values()) == ["it rang"]
        assert [text for _, text in notebook.pages.values()] != []
        gateway.assert_sound()


def _as_scripted(echo: EchoModel) -> FakeModel:
    """Return a FakeModel that answers with `echo`, because the runtimes of the gateway take a FakeModel."""

    class DelegatingModel(FakeModel):
        answer = echo.answer

    return DelegatingModel(name=echo.name, context_tokens=echo.context_tokens)


def test_each_implementation_passes_its_contract() -> None:
    async def check() -> None:
        context = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp(person="ada"))
        ring_tool = RingTool()
        assert await ring_tool.probe(context) is None
        ran = await ring_tool.run({}, context)
        assert await ring_tool.probe(context) == ran
        assert ring_tool.effect is ToolEffect.PROBE
        note = MemoryNote(
            key="n", session="s", agent="main", seq=1, text="tea", author="a", at=0.0, stamp=Stamp(audience=("p",))
        )
        notebook = NotebookProvider()
        assert await notebook.store(MemoryBatch(name="s", items=(note,))) == {"n": "page-n"}
        assert await notebook.probe(MemoryBatch(name="s", items=(note,))) == ["n"]
        for audience, expected in ((("p",), ["tea"]), (("p", "q"), [])):
            query = MemoryQuery(text="tea", agent="main", session="s", name="s", audience=audience, person="ada")
            assert [found.text for found in await notebook.find(query)] == expected
        platform = ListPlatform([])
        out = OutgoingMessage(to=ChatLocation(platform="post", chat="ada"), text="hi", key="k")
        assert await platform.probe(out) is None
        assert await platform.send(out) == await platform.send(out) == await platform.probe(out)
        assert platform.delivery is DeliveryGuarantee.KEYED
        assert ToolCall(id="1", tool="t") == ToolCall(id="1", tool="t")
        assert (await EchoModel().answer(ModelRequest(system="", messages=_make_messages("hi")))).text == "hi"

    asyncio.run(check())


def _make_messages(text: str) -> tuple[ModelMessage, ...]:
    return (ModelMessage(role="user", text=text),)
