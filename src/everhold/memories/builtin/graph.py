"""Writes a sentence encoder as an ONNX graph, byte by byte: a BERT of any size, its mean, and its length made one.

ONNX is a protocol-buffer format with a handful of messages; writing them here spares an installation of 20 MB.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

IR_VERSION: Final = 9
OPSET: Final = 20
FLOAT, INT64 = 1, 7


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(tag: int, value: int | float | str | bytes) -> bytes:
    match value:
        case float():
            return varint(tag << 3 | 5) + struct.pack("<f", value)
        case int():
            return varint(tag << 3) + varint(value)
        case str():
            return field(tag, value.encode())
        case _:
            return varint(tag << 3 | 2) + varint(len(value)) + value


def tensor(name: str, array: npt.NDArray[Any]) -> bytes:
    kind = INT64 if array.dtype.kind == "i" else FLOAT
    dims = b"".join(field(1, size) for size in array.shape)
    return dims + field(2, kind) + field(8, name) + field(9, array.tobytes())


def attribute(name: str, value: int | float | Sequence[int]) -> bytes:
    match value:
        case float():
            return field(1, name) + field(2, value) + field(20, 1)
        case int():
            return field(1, name) + field(3, value) + field(20, 2)
        case _:
            return field(1, name) + b"".join(field(8, one) for one in value) + field(20, 7)


def port(name: str, kind: int, *dims: int | str) -> bytes:
    shape = b"".join(field(1, field(1, dim) if isinstance(dim, int) else field(2, dim)) for dim in dims)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, shape)))


class Builder:
    """Collects nodes and their constants."""

    def __init__(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        import numpy as np

        self.np = np
        self.weights = weights
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def op(self, kind: str, *inputs: str, **attributes: int | float | Sequence[int]) -> str:
        output = f"t{len(self._nodes)}"
        parts = [field(1, one) for one in inputs] + [field(2, output), field(4, kind)]
        parts += [field(5, attribute(name, value)) for name, value in attributes.items()]
        self._nodes.append(b"".join(parts))
        return output

    def constant(self, array: Any, kind: str = "<f4") -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(tensor(name, self.np.ascontiguousarray(array, dtype=kind)))
        return name

    def linear(self, x: str, name: str) -> str:
        product = self.op("MatMul", x, self.constant(self.weights[f"{name}.weight"].T))
        return self.op("Add", product, self.constant(self.weights[f"{name}.bias"]))

    def norm(self, x: str, name: str) -> str:
        scale, shift = self.constant(self.weights[f"{name}.weight"]), self.constant(self.weights[f"{name}.bias"])
        return self.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-12)

    def model(self, output: str, width: int) -> bytes:
        self._nodes.append(field(1, output) + field(2, "vector") + field(4, "Identity"))
        graph = b"".join(
            [
                *(field(1, node) for node in self._nodes),
                field(2, "encoder"),
                *(field(5, constant) for constant in self._constants),
                field(11, port("ids", INT64, "batch", "length")),
                field(11, port("mask", INT64, "batch", "length")),
                field(11, port("places", INT64, "length")),
                field(12, port("vector", FLOAT, "batch", width)),
            ]
        )
        return field(1, IR_VERSION) + field(8, field(1, "") + field(2, OPSET)) + field(7, graph)


def bert(weights: Mapping[str, npt.NDArray[np.float32]], *, layers: int, heads: int) -> bytes:
    """The encoder with these weights: ids, mask and places in, a vector of length one per text out."""
    b = Builder(weights)
    words = weights["embeddings.word_embeddings.weight"]
    width = int(words.shape[1])
    places = weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
    seen = b.op("Cast", "mask", to=FLOAT)
    hidden = b.op("Mul", b.op("Sub", b.constant(1.0), seen), b.constant(-1e9))
    hidden = b.op("Unsqueeze", hidden, b.constant([1, 2], "<i8"))
    split = b.constant([0, 0, heads, width // heads], "<i8")
    joined = b.constant([0, 0, width], "<i8")
    scale = b.constant(1 / math.sqrt(width // heads))
    x = b.op(
        "Add",
        b.op("Gather", b.constant(words), "ids", axis=0),
        b.op("Gather", b.constant(places), "places", axis=0),
    )
    x = b.norm(x, "embeddings.LayerNorm")
    for number in range(layers):
        layer = f"encoder.layer.{number}"

        def part(name: str, order: Sequence[int], x: str = x, layer: str = layer) -> str:
            whole = b.linear(x, f"{layer}.attention.self.{name}")
            return b.op("Transpose", b.op("Reshape", whole, split), perm=order)

        query, key, value = part("query", (0, 2, 1, 3)), part("key", (0, 2, 3, 1)), part("value", (0, 2, 1, 3))
        near = b.op("Add", b.op("Mul", b.op("MatMul", query, key), scale), hidden)
        heard = b.op("MatMul", b.op("Softmax", near, axis=-1), value)
        heard = b.op("Reshape", b.op("Transpose", heard, perm=(0, 2, 1, 3)), joined)
        heard = b.linear(heard, f"{layer}.attention.output.dense")
        x = b.norm(b.op("Add", heard, x), f"{layer}.attention.output.LayerNorm")
        wide = b.op("Gelu", b.linear(x, f"{layer}.intermediate.dense"))
        x = b.norm(b.op("Add", b.linear(wide, f"{layer}.output.dense"), x), f"{layer}.output.LayerNorm")
    column = b.op("Unsqueeze", seen, b.constant([2], "<i8"))
    along = b.constant([1], "<i8")
    total = b.op("ReduceSum", b.op("Mul", x, column), along, keepdims=0)
    mean = b.op("Div", total, b.op("ReduceSum", column, along, keepdims=0))
    return b.model(b.op("LpNormalization", mean, axis=1, p=2), width)
