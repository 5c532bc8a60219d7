"""Vectors: the static table is used at once, the stronger model in the background, and neither is loaded before first
use.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everhold.memories.builtin import embeddings, onnx_embeddings, static_embeddings
from everhold.memories.builtin.embedding_backfill import IDLE_SECONDS, run_embedding_backfill
from everhold.memories.builtin.graph import build_bert_encoder, encode_field, encode_varint
from everhold.memories.builtin.tokenizing import CHUNK_CHARS, remove_names, split_chunks
from everhold.memories.builtin.wordpiece import WordPieceTokenizer
from tests.memories.builtin.index_scenario import IndexScenario

ROOT = Path(__file__).parents[3]


LOADED = """
import asyncio, sys
from pathlib import Path
from tests.e2e.running_gateway import RunningGateway

def heavy():
    print(*sorted({"numpy", "onnxruntime"} & set(sys.modules)), sep=", ")

async def main():
    async with RunningGateway(Path(sys.argv[1]), "{}") as gateway:
        await gateway.app.session_admin.collect_status()
        await asyncio.sleep(0.2)
        heavy()
        await gateway.send_and_wait("the tea garden lies in Assam", chat="past")
        await gateway.send_and_wait("where does the tea garden lie?", chat="now")
        heavy()

asyncio.run(main())
"""


def test_numpy_is_not_loaded_before_the_first_search(tmp_path: Path) -> None:
    run = [sys.executable, "-c", LOADED, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == ["", "numpy"]


def test_the_embedding_table_matches_its_notice_and_can_be_rebuilt() -> None:
    data = Path(static_embeddings.__file__).parent / "data"
    notice = (data / "NOTICE").read_text()
    assert "Apache License 2.0" in notice
    (script,) = re.findall(r"\S+\.py", notice)
    assert (ROOT / script).is_file()
    pieces = (data / "vocabulary.txt").read_text(encoding="utf-8").split("\n")
    assert (data / "table.int8").stat().st_size == (
        len(pieces) - static_embeddings.FIRST_PIECE_ID
    ) * static_embeddings.DIMENSIONS


def test_the_tokenizer_prefers_the_longest_pieces() -> None:
    pieces = WordPieceTokenizer(["un", "##affable", "##aff", "##able", "a", "!", "中"], unknown=99)
    assert pieces.tokenize("Unaffable! ÁÀ 中中 zzz") == [0, 1, 5, 99, 6, 6, 99]


def test_the_chunks_of_a_text_join_to_the_text() -> None:
    for text in (
        "",
        "short",
        "word " * 5_000,
        "x" * 5_000,
        "Para one.\n\nPara two. " * 300,
        "。".join(["中文" * 30] * 50),
    ):
        found = split_chunks(text)
        assert "".join(found) == text
        assert all(len(one) <= CHUNK_CHARS * 5 // 4 for one in found)


def test_only_names_are_removed_from_a_question() -> None:
    assert remove_names("What is Ada's (adam) plan, ADA?", {"ada"}).split() == ["What", "is", "(adam)", "plan,", "?"]
    assert remove_names("Ada?", {"ada"}) == "Ada?"


def test_words_similar_to_the_question_raise_the_coverage() -> None:
    known = static_embeddings.load_static_embeddings()
    wanted = known.select_content_pieces("which dog do they have")
    kept = [known.pack_pieces(text) for text in ("I adopted a puppy", "quarterly revenue fell", "the of and")]
    best = known.compute_best_similarities(wanted, kept)
    puppy, revenue, nothing = known.compute_coverage(wanted, best, np.zeros_like(best))
    assert puppy > revenue >= nothing == 0


def test_numbers_are_encoded_as_protocol_buffers() -> None:
    assert encode_varint(300) == b"\xac\x02"
    assert encode_varint(-1) == b"\xff" * 9 + b"\x01"
    assert encode_field(1, "ab") == b"\x0a\x02ab"


class Fake:
    """A fake model: equal texts have equal vectors, different texts have different ones."""

    def embed_question(self, text: str) -> Any:
        return self._vector(text)

    def embed_chunks(self, pairs: Sequence[tuple[str, str]]) -> list[bytes]:
        return [np.round(self._vector(own) * 127).astype(np.int8).tobytes() for own, _ in pairs]

    def _vector(self, text: str) -> Any:
        seed = int.from_bytes(hashlib.sha256(text.strip().encode()).digest()[:4], "little")
        vector = np.random.default_rng(seed).normal(size=onnx_embeddings.DIMENSIONS).astype(np.float32)
        return vector / np.linalg.norm(vector)


async def test_stronger_embeddings_are_added_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_embeddings, "is_available", lambda _: True)
    monkeypatch.setattr(onnx_embeddings, "load_encoder", lambda _: Fake())
    monkeypatch.setattr(embeddings, "MAX_UNEMBEDDED_CHUNKS", 2)
    scenario = IndexScenario(tmp_path, embeddings="auto")
    seqs = [await scenario.say(f"sentence about number {number}") for number in range(8)]
    assert scenario.index.embedding_level == "model"
    assert len(await scenario.find("number")) == 8  # by the table so far
    while await scenario.index.fill_embeddings(3):
        pass
    assert (await scenario.find("sentence about number 5"))[0] == "sentence about number 5"
    late = await scenario.say("a late arrival about number 9")
    assert "a late arrival about number 9" in await scenario.find("late arrival")
    await scenario.erase_entries(seqs[5], late)
    assert "sentence about number 5" not in await scenario.find("sentence about number 5")
    while await scenario.index.fill_embeddings(3):
        pass
    assert len(await scenario.find("number")) == 7
    await scenario.close()


async def test_a_large_scope_is_searched_by_sign_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everhold.memories.builtin.vector_cache.MAX_RESIDENT_CHUNKS", 64)
    monkeypatch.setattr("everhold.memories.builtin.ranking.MAX_CANDIDATE_CHUNKS", 20)
    scenario = IndexScenario(tmp_path)
    for number in range(120):
        await scenario.say(f"the {number}th crate holds screws and bolts", session=f"s{number % 7}")
    await scenario.say("I adopted a puppy last week.", session="dogs")
    assert (await scenario.find("which dog did they get"))[0] == "I adopted a puppy last week."
    await scenario.close()


def _bert(width: int, layers: int, words: int, places: int) -> dict[str, Any]:
    """Weights of a small encoder, with BERT's names."""
    chance = np.random.default_rng(3)

    def some(*shape: int) -> Any:
        return (chance.normal(size=shape) * 0.4).astype(np.float32)

    weights = {
        "embeddings.word_embeddings.weight": some(words, width),
        "embeddings.position_embeddings.weight": some(places, width),
        "embeddings.token_type_embeddings.weight": some(2, width),
    }
    norms = ["embeddings.LayerNorm"]
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        for name, out, into in (
            ("attention.self.query", width, width),
            ("attention.self.key", width, width),
            ("attention.self.value", width, width),
            ("attention.output.dense", width, width),
            ("intermediate.dense", 4 * width, width),
            ("output.dense", width, 4 * width),
        ):
            weights[f"{layer}.{name}.weight"] = some(out, into)
            weights[f"{layer}.{name}.bias"] = some(out)
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name in norms:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = 1 + some(width), some(width)
    return weights


def _by_hand(weights: dict[str, Any], ids: Sequence[int], *, layers: int, heads: int) -> Any:
    """Compute the encoder's output for one text directly, as BERT is defined."""

    def linear(x: Any, name: str) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = weights["embeddings.word_embeddings.weight"][list(ids)]
    x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            np.split(linear(x, f"{layer}.attention.self.{name}"), heads, axis=1) for name in ("query", "key", "value")
        )
        heard = []
        for q, k, v in zip(query, key, value, strict=True):
            near = np.exp(q @ k.T / math.sqrt(q.shape[1]))
            heard.append(near / near.sum(1, keepdims=True) @ v)
        x = norm(
            x + linear(np.concatenate(heard, 1), f"{layer}.attention.output.dense"),
            f"{layer}.attention.output.LayerNorm",
        )
        wide = linear(x, f"{layer}.intermediate.dense")
        wide = wide * 0.5 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
        x = norm(x + linear(wide, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def test_the_written_graph_computes_the_same_as_bert() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    weights = _bert(width=8, layers=2, words=20, places=10)
    model = onnxruntime.InferenceSession(
        build_bert_encoder(weights, layers=2, heads=2), providers=["CPUExecutionProvider"]
    )
    texts = [[3, 7, 11, 19, 2], [5, 1]]
    ids = np.array([[*text, *[0] * (5 - len(text))] for text in texts])
    mask = np.array([[1] * len(text) + [0] * (5 - len(text)) for text in texts])
    (found,) = model.run(None, {"ids": ids, "mask": mask, "places": np.arange(5)})
    for vector, text in zip(found, texts, strict=True):
        assert np.allclose(vector, _by_hand(weights, text, layers=2, heads=2), atol=1e-4)


async def test_unknown_weights_are_refused_and_reported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "models" / onnx_embeddings.WEIGHTS_DIRECTORY_NAME
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"something else")
    (folder / "vocab.txt").write_text("[PAD]\n")
    scenario = IndexScenario(tmp_path, embeddings="auto", models=tmp_path / "models")
    await scenario.say("I adopted a puppy last week.")
    assert scenario.index.embedding_level == "model"
    assert await scenario.find("which dog") == ["I adopted a puppy last week."]
    log = Lines()
    await run_embedding_backfill(scenario.index, log, log)
    assert scenario.index.embedding_level == "table"
    assert [event for event, _ in log.lines] == ["index.level_changed"]
    assert "not the model it should be" in (await scenario.provider().health()).text
    assert await scenario.find("which dog") == ["I adopted a puppy last week."]
    await scenario.close()


class Lines:
    """A logger that keeps its lines, and a clock that counts."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.moment = 0.0

    def debug(self, event: str, /, **fields: object) -> None:
        self.lines.append((event, fields))

    info = warning = error = debug

    def bind(self, **_: object) -> Lines:
        return self

    def now(self) -> float:
        return self.monotonic()

    def monotonic(self) -> float:
        self.moment += 1.0
        return self.moment


async def test_the_backfill_pauses_as_long_as_it_works_and_logs_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_embeddings, "is_available", lambda _: True)
    monkeypatch.setattr(onnx_embeddings, "load_encoder", lambda _: Fake())
    scenario = IndexScenario(tmp_path, embeddings="auto")
    for number in range(40):
        await scenario.say(f"sentence about number {number}")
    await scenario.find("number")
    assert (await scenario.provider().health()).text == "by words and by a model, 40 of 40 passages to go"
    log = Lines()
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        if seconds == IDLE_SECONDS:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await run_embedding_backfill(scenario.index, log, log, sleep=sleep)
    assert rests == [1.0, 1.0, 1.0, IDLE_SECONDS]
    assert log.lines == [("index.filling", {"filled": 40, "left": 0, "passages": 40})]
    assert (await scenario.provider().health()).text == "by words and by a model"
    await scenario.close()


@pytest.mark.skipif(not onnx_embeddings.is_available(), reason="needs the weights of the extra [embeddings]")
def test_the_model_ranks_similar_texts_first() -> None:
    model = onnx_embeddings.load_encoder()
    question = model.embed_question("Which dog do they have?")
    puppy, revenue = (
        float(np.frombuffer(one, np.int8) @ question)
        for one in model.embed_chunks([("I adopted a puppy", ""), ("Quarterly revenue fell", "")])
    )
    assert puppy > revenue
