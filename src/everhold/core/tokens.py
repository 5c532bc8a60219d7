"""Estimate how many tokens a request costs, without a tokenizer and without the network.

A weight is the number of bytes divided by four, plus a little for each structure around the text. The token counts that
a model reports calibrate the weight for that model, so the estimate improves with each answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.core.attachments import MAX_SHOWN_CHARS, PDF, is_text_file
from everhold.core.entries import Attachment
from everhold.ports.model import ModelMessage, ModelRequest, ToolSpec

BYTES_PER_TOKEN: Final = 4
MESSAGE_WEIGHT: Final = 4
"""For the role and the delimiters."""
CALL_WEIGHT: Final = 10
TOOL_WEIGHT: Final = 12
IMAGE_WEIGHT: Final = 1_100
"""Between a thumbnail (85) and a full tile set (about 1,600)."""
FILE_WEIGHT: Final = 20
PDF_BYTES_PER_TOKEN: Final = 25
"""A page has about 50 KB and costs about 2,000 tokens."""
MAX_PDF_WEIGHT: Final = 100_000
SPEAKER_WEIGHT: Final = 3
"""For the brackets and the dot of a line that names a speaker."""
PIECE_WEIGHT: Final = 16
"""For the line that names the author of a quoted text."""

MIN_OBSERVED_WEIGHT: Final = 64
"""The token count of a lighter request is dominated by the vendor's hidden preamble."""
MIN_LEARNING_RATE: Final = 0.1
"""Weight of a new observation after many observations, because the model behind an alias may change."""
MIN_RATIO: Final = 0.2
MAX_RATIO: Final = 5.0
"""A ratio outside these limits means that the server counts something else."""


class TokenCalibration(Struct, frozen=True, kw_only=True):
    """What one model's reports show: its tokens per unit of weight, and how far single requests deviate."""

    ratio: float = 1.0
    spread: float = 0.25
    samples: int = 0


UNCALIBRATED: Final = TokenCalibration()


def weigh_text(text: str) -> int:
    """Return the weight of a text. A longer text never weighs less than its beginning."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def weigh_json(value: Any) -> int:
    return -(-len(msgspec.json.encode(value)) // BYTES_PER_TOKEN)


def weigh_message(message: ModelMessage) -> int:
    weight = MESSAGE_WEIGHT + weigh_text(message.text)
    if message.name or message.speaker:
        weight += weigh_text(message.name) + weigh_text(message.speaker) + SPEAKER_WEIGHT
        weight += message.text.count("\n")
    for piece in message.pieces:
        weight += PIECE_WEIGHT + weigh_text(piece.by) + weigh_text(piece.name)
        weight += weigh_text(piece.text) + piece.text.count("\n")
    for call in message.calls:
        weight += CALL_WEIGHT + weigh_text(call.tool) + weigh_json(call.arguments)
    for attachment in message.attachments:
        weight += _weigh_attachment(attachment, is_read=message.role == "user")
    return weight


def weigh_messages(messages: Iterable[ModelMessage]) -> int:
    return sum(map(weigh_message, messages))


def weigh_tools(tools: Sequence[ToolSpec]) -> int:
    return sum(
        TOOL_WEIGHT + weigh_text(tool.name) + weigh_text(tool.description) + weigh_json(tool.parameters)
        for tool in tools
    )


def weigh_request(request: ModelRequest) -> int:
    """Return the weight of everything a model reads. Reasoning is left out, because most vendors do not send it
    again.
    """
    return MESSAGE_WEIGHT + weigh_text(request.system) + weigh_tools(request.tools) + weigh_messages(request.messages)


def estimate_tokens(weight: int, calibration: TokenCalibration = UNCALIBRATED) -> int:
    """Return the most likely number of tokens."""
    return ceil(weight * calibration.ratio)


def estimate_max_tokens(weight: int, calibration: TokenCalibration = UNCALIBRATED) -> int:
    """Return a number of tokens that nearly every request of this weight stays below. Budgets reserve it, and a window
    must hold it.
    """
    return ceil(weight * calibration.ratio * (1 + 2 * calibration.spread))


def update_calibration(calibration: TokenCalibration, *, weight: int, tokens: int) -> TokenCalibration:
    """Return the calibration after a model reported `tokens` input tokens for a request of this weight."""
    if weight < MIN_OBSERVED_WEIGHT or tokens <= 0:
        return calibration
    ratio = min(MAX_RATIO, max(MIN_RATIO, tokens / weight))
    step = max(MIN_LEARNING_RATE, 1 / (calibration.samples + 1))
    astray = abs(ratio - calibration.ratio) / calibration.ratio if calibration.samples else 0.1
    return TokenCalibration(
        ratio=min(MAX_RATIO, max(MIN_RATIO, calibration.ratio + step * (ratio - calibration.ratio))),
        spread=min(1.0, max(0.02, calibration.spread + step * (astray - calibration.spread))),
        samples=calibration.samples + 1,
    )


def _weigh_attachment(attachment: Attachment, *, is_read: bool) -> int:
    """`is_read`: the model reads texts and documents, too. Of a tool's result it sees only the images."""
    if attachment.media.startswith("image/"):
        return IMAGE_WEIGHT
    weight = FILE_WEIGHT + weigh_text(attachment.name)
    if not is_read:
        return weight
    if is_text_file(attachment):
        return weight + min(attachment.size, 2 * MAX_SHOWN_CHARS) // BYTES_PER_TOKEN
    return weight + min(attachment.size // PDF_BYTES_PER_TOKEN, MAX_PDF_WEIGHT) if attachment.media == PDF else weight
