"""The ports can be kept as they are documented: by whoever reads the types, and by whoever runs the code.

The files beside this one are a stranger's. mypy reads them as a stranger's mypy would, strictly and without our
configuration. A line that must not check carries an ignore, and an ignore that is not needed is an error, too.
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
from tests.typing.memory import Notebook
from tests.typing.model import Parrot
from tests.typing.platform import ListPlatform
from tests.typing.tool import Doorbell

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STRANGERS = sorted(path for path in HERE.glob("*.py") if not path.name.startswith("test_"))


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
def test_the_ports_can_be_kept_as_documented(tmp_path: Path) -> None:
    cache = ROOT / ".mypy_cache" / "strangers"
    done = mypy(*STRANGERS, cache=cache)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(STRANGERS)} source files" in done.stdout
    # and the check itself can fail
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from everhold import Model\n\nmodel: Model = object()\n")
    found = mypy(wrong, cache=cache)
    assert found.returncode == 1
    assert "[assignment]" in found.stdout


def test_everhold_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "everhold" / "py.typed").exists()


def test_what_checks_also_runs(tmp_path: Path) -> None:
    """A house with a stranger's model, tool, platform and provider in it."""
    house = InProcessGateway(tmp_path)
    bell, notebook, postbox = Doorbell(), Notebook(), ListPlatform(["ring"])
    house.runtimes.tools = {"ring": bell}
    house.runtimes.memories = {"notes": notebook}
    house.runtimes.platforms[("post", "main")] = postbox
    house.runtimes.model = _as_scripted(Parrot())
    with house.run_started():
        assert house.process is not None
        house.run(postbox.listen(house.process.accept))
        house.run_until_idle()
        session = postbox.verdicts[0].session
        assert [body.text for body in house.read_bodies(session, Returned)] == ["it rang"]
        assert list(postbox.sent.values()) == ["it rang"]
        assert [text for _, text in notebook.pages.values()] != []
        house.assert_sound()


def _as_scripted(parrot: Parrot) -> FakeModel:
    """The house's furniture is typed for its own model, which has a script; a stranger's is asked through one."""

    class Asked(FakeModel):
        answer = parrot.answer

    return Asked(name=parrot.name, context_tokens=parrot.context_tokens)


def test_each_stranger_keeps_its_word() -> None:
    async def look() -> None:
        context = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp(person="ada"))
        bell = Doorbell()
        assert await bell.probe(context) is None
        ran = await bell.run({}, context)
        assert await bell.probe(context) == ran
        assert bell.effect is ToolEffect.PROBE
        note = MemoryNote(
            key="n", session="s", agent="main", seq=1, text="tea", author="a", at=0.0, stamp=Stamp(audience=("p",))
        )
        notebook = Notebook()
        assert await notebook.store(MemoryBatch(name="s", items=(note,))) == {"n": "page-n"}
        assert await notebook.probe(MemoryBatch(name="s", items=(note,))) == ["n"]
        for audience, expected in ((("p",), ["tea"]), (("p", "q"), [])):
            query = MemoryQuery(text="tea", agent="main", session="s", name="s", audience=audience, person="ada")
            assert [found.text for found in await notebook.find(query)] == expected
        postbox = ListPlatform([])
        out = OutgoingMessage(to=ChatLocation(platform="post", chat="ada"), text="hi", key="k")
        assert await postbox.probe(out) is None
        assert await postbox.send(out) == await postbox.send(out) == await postbox.probe(out)
        assert postbox.delivery is DeliveryGuarantee.KEYED
        assert ToolCall(id="1", tool="t") == ToolCall(id="1", tool="t")
        assert (await Parrot().answer(ModelRequest(system="", messages=_said("hi")))).text == "hi"

    asyncio.run(look())


def _said(text: str) -> tuple[ModelMessage, ...]:
    return (ModelMessage(role="user", text=text),)
