"""Vectors come when needed: the table at once, the stronger model beside the chat, neither before first use."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from everhold.memories.builtin import encoder, meaning, table
from everhold.memories.builtin.graph import field, varint
from everhold.memories.builtin.wordpiece import WordPiece
from everhold.memories.builtin.words import CHUNK, chunks, without
from tests.memories.builtin.stage import Stage

np = pytest.importorskip("numpy")


def test_nothing_heavy_is_loaded_before_something_is_looked_for() -> None:
    script = "import sys, everhold.memories.builtin as b; print({'numpy', 'onnxruntime'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "set()\n"
    )


def test_pieces_are_the_longest_there_are() -> None:
    pieces = WordPiece(["un", "##affable", "##aff", "##able", "a", "!", "中"], unknown=99)
    assert pieces.ids("Unaffable! ÁÀ 中中 zzz") == [0, 1, 5, 99, 6, 6, 99]


def test_every_text_is_its_chunks_joined() -> None:
    for text in (
        "",
        "short",
        "word " * 5_000,
        "x" * 5_000,
        "Para one.\n\nPara two. " * 300,
        "。".join(["中文" * 30] * 50),
    ):
        found = chunks(text)
        assert "".join(found) == text
        assert all(len(one) <= CHUNK * 5 // 4 for one in found)


def test_names_go_from_a_question_and_nothing_else_does() -> None:
    assert without("What is Ada's (adam) plan, ADA?", {"ada"}).split() == ["What", "is", "(adam)", "plan,", "?"]
    assert without("Ada?", {"ada"}) == "Ada?"


def test_words_that_are_like_the_question_count_one_by_one() -> None:
    known = table.load()
    wanted = known.telling("which dog do they have")
    kept = [known.packed(text) for text in ("I adopted a puppy", "quarterly revenue fell", "the of and")]
    best = known.best(wanted, kept)
    puppy, revenue, nothing = known.share(wanted, best, np.zeros_like(best))
    assert puppy > revenue >= nothing == 0


def test_numbers_are_written_as_protocol_buffers_want_them() -> None:
    assert varint(300) == b"\xac\x02"
    assert varint(-1) == b"\xff" * 9 + b"\x01"
    assert field(1, "ab") == b"\x0a\x02ab"


class Fake:
    """Reads like a model: the same text has the same vector, another one another."""

    def question(self, text: str) -> Any:
        return self._vector(text)

    def stored(self, pairs: Sequence[tuple[str, str]]) -> list[bytes]:
        return [np.round(self._vector(own) * 127).astype(np.int8).tobytes() for own, _ in pairs]

    def _vector(self, text: str) -> Any:
        seed = int.from_bytes(hashlib.sha256(text.strip().encode()).digest()[:4], "little")
        vector = np.random.default_rng(seed).normal(size=encoder.DIMENSIONS).astype(np.float32)
        return vector / np.linalg.norm(vector)


async def test_the_stronger_model_is_filled_in_beside_the_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "available", lambda: True)
    monkeypatch.setattr(encoder, "load", Fake)
    monkeypatch.setattr(meaning, "BEHIND", 2)
    stage = Stage(tmp_path, embeddings="auto")
    seqs = [await stage.say(f"sentence about number {number}") for number in range(8)]
    assert stage.index.level == "model"
    assert len(await stage.find("number")) == 8  # by the table, meanwhile
    while await stage.index.fill(3):
        pass
    assert (await stage.find("sentence about number 5"))[0] == "sentence about number 5"
    late = await stage.say("a late arrival about number 9")
    assert "a late arrival about number 9" in await stage.find("late arrival")
    await stage.erase(seqs[5], late)
    assert "sentence about number 5" not in await stage.find("sentence about number 5")
    while await stage.index.fill(3):
        pass
    assert len(await stage.find("number")) == 7
    await stage.close()


async def test_a_large_scope_is_found_by_its_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everhold.memories.builtin.shelf.RESIDENT", 64)
    monkeypatch.setattr("everhold.memories.builtin.near.CANDIDATES", 20)
    stage = Stage(tmp_path)
    for number in range(120):
        await stage.say(f"the {number}th crate holds screws and bolts", session=f"s{number % 7}")
    await stage.say("I adopted a puppy last week.", session="dogs")
    assert (await stage.find("which dog did they get"))[0] == "I adopted a puppy last week."
    await stage.close()


@pytest.mark.skipif(not encoder.available(), reason="needs the extra [embeddings] and its weights")
def test_the_model_puts_like_beside_like() -> None:
    model = encoder.load()
    question = model.question("Which dog do they have?")
    puppy, revenue = (
        float(np.frombuffer(one, np.int8) @ question)
        for one in model.stored([("I adopted a puppy", ""), ("Quarterly revenue fell", "")])
    )
    assert puppy > revenue
