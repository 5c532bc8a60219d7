"""Writes a sentence encoder as an ONNX graph: a BERT of any size, mean pooling and normalisation to length one.

ONNX is a protocol-buffer format with a few message types. Writing them here avoids an installation of 20 MB.
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


def encode_varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_field(tag: int, value: int | float | str | bytes) -> bytes:
    match value:
        case float():
            return encode_varint(tag << 3 | 5) + struct.pack("<f", value)
        case int():
            return encode_varint(tag << 3) + encode_varint(value)
        case str():
            return encode_field(tag, value.encode())
        case _:
            return encode_varint(tag << 3 | 2) + encode_varint(len(value)) + value


def encode_tensor(name: str, array: npt.NDArray[Any]) -> bytes:
    kind = INT64 if array.dtype.kind == "i" else FLOAT
    dims = b"".join(encode_field(1, size) for size in array.shape)
    return dims + encode_field(2, kind) + encode_field(8, name) + encode_field(9, array.tobytes())


def encode_attribute(name: str, value: int | float | Sequence[int]) -> bytes:
    match value:
        case float():
            return encode_field(1, name) + encode_field(2, value) + encode_field(20, 1)
        case int():
            return encode_field(1, name) + encode_field(3, value) + encode_field(20, 2)
        case _:
            return encode_field(1, name) + b"".join(encode_field(8, one) for one in value) + encode_field(20, 7)


def encode_port(name: str, kind: int, *dims: int | str) -> bytes:
    shape = b"".join(
        encode_field(1, encode_field(1, dim) if isinstance(dim, int) else encode_field(2, dim)) for dim in dims
    )
    return encode_field(1, name) + encode_field(2, encode_field(1, encode_field(1, kind) + encode_field(2, shape)))


class OnnxGraphBuilder:
    """Collects nodes and constants of the graph."""

    def __init__(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        import numpy as np

        self.np = np
        self.weights = weights
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def add_node(self, kind: str, *inputs: str, **attributes: int | float | Sequence[int]) -> str:
        output = f"t{len(self._nodes)}"
        parts = [encode_field(1, one) for one in inputs] + [encode_field(2, output), encode_field(4, kind)]
        parts += [encode_field(5, encode_attribute(name, value)) for name, value in attributes.items()]
        self._nodes.append(b"".join(parts))
        return output

    def add_constant(self, array: Any, kind: str = "<f4") -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(encode_tensor(name, self.np.ascontiguousarray(array, dtype=kind)))
        return name

    def add_linear(self, x: str, name: str) -> str:
        product = self.add_node("MatMul", x, self.add_constant(self.weights[f"{name}.weight"].T))
        return self.add_node("Add", product, self.add_constant(self.weights[f"{name}.bias"]))

    def add_layer_norm(self, x: str, name: str) -> str:
        scale, shift = (
            self.add_constant(self.weights[f"{name}.weight"]),
            self.add_constant(self.weights[f"{name}.bias"]),
        )
        return self.add_node("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-12)

    def encode_model(self, output: str, width: int) -> bytes:
        self._nodes.append(encode_field(1, output) + encode_field(2, "vector") + encode_field(4, "Identity"))
        graph = b"".join(
            [
                *(encode_field(1, node) for node in self._nodes),
                encode_field(2, "encoder"),
                *(encode_field(5, constant) for constant in self._constants),
                encode_field(11, encode_port("ids", INT64, "batch", "length")),
                encode_field(11, encode_port("mask", INT64, "batch", "length")),
                encode_field(11, encode_port("places", INT64, "length")),
                encode_field(12, encode_port("vector", FLOAT, "batch", width)),
            ]
        )
        return (
            encode_field(1, IR_VERSION)
            + encode_field(8, encode_field(1, "") + encode_field(2, OPSET))
            + encode_field(7, graph)
        )


def build_bert_encoder(weights: Mapping[str, npt.NDArray[np.float32]], *, layers: int, heads: int) -> bytes:
    """Return the encoder with these weights. It takes ids, mask and places, and returns a vector of length one per
    text.
    """
    b = OnnxGraphBuilder(weights)
    words = weights["embeddings.word_embeddings.weight"]
    width = int(words.shape[1])
    places = weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
    seen = b.add_node("Cast", "mask", to=FLOAT)
    hidden = b.add_node("Mul", b.add_node("Sub", b.add_constant(1.0), seen), b.add_constant(-1e9))
    hidden = b.add_node("Unsqueeze", hidden, b.add_constant([1, 2], "<i8"))
    split = b.add_constant([0, 0, heads, width // heads], "<i8")
    joined = b.add_constant([0, 0, width], "<i8")
    scale = b.add_constant(1 / math.sqrt(width // heads))
    x = b.add_node(
        "Add",
        b.add_node("Gather", b.add_constant(words), "ids", axis=0),
        b.add_node("Gather", b.add_constant(places), "places", axis=0),
    )
    x = b.add_layer_norm(x, "embeddings.LayerNorm")
    for number in range(layers):
        layer = f"encoder.layer.{number}"

        def part(name: str, order: Sequence[int], x: str = x, layer: str = layer) -> str:
            whole = b.add_linear(x, f"{layer}.attention.self.{name}")
            return b.add_node("Transpose", b.add_node("Reshape", whole, split), perm=order)

        query, key, value = part("query", (0, 2, 1, 3)), part("key", (0, 2, 3, 1)), part("value", (0, 2, 1, 3))
        near = b.add_node("Add", b.add_node("Mul", b.add_node("MatMul", query, key), scale), hidden)
        heard = b.add_node("MatMul", b.add_node("Softmax", near, axis=-1), value)
        heard = b.add_node("Reshape", b.add_node("Transpose", heard, perm=(0, 2, 1, 3)), joined)
        heard = b.add_linear(heard, f"{layer}.attention.output.dense")
        x = b.add_layer_norm(b.add_node("Add", heard, x), f"{layer}.attention.output.LayerNorm")
        wide = b.add_node("Gelu", b.add_linear(x, f"{layer}.intermediate.dense"))
        x = b.add_layer_norm(
            b.add_node("Add", b.add_linear(wide, f"{layer}.output.dense"), x), f"{layer}.output.LayerNorm"
        )
    column = b.add_node("Unsqueeze", seen, b.add_constant([2], "<i8"))
    along = b.add_constant([1], "<i8")
    total = b.add_node("ReduceSum", b.add_node("Mul", x, column), along, keepdims=0)
    mean = b.add_node("Div", total, b.add_node("ReduceSum", column, along, keepdims=0))
    return b.encode_model(b.add_node("LpNormalization", mean, axis=1, p=2), width)
