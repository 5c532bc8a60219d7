"""How many tokens something will cost, without a tokenizer and without the network.

A weight is bytes divided by four, with a little for every frame around the text. What a model reports for a request
calibrates the weight for that model, so the estimate becomes its own after a few answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.core.entries import Attachment
from everhold.ports.model import Message, Request, ToolSpec

BYTES_PER_TOKEN: Final = 4
MESSAGE: Final = 4
"""Role, delimiters."""
CALL: Final = 10
TOOL: Final = 12
IMAGE: Final = 1_100
"""Between a thumbnail (85) and a full tile set (about 1,600)."""
FILE: Final = 20

SMALL: Final = 64
"""A request lighter than this says more about a vendor's hidden preamble than about its tokens."""
SLOWEST: Final = 0.1
"""Weight of a new observation once many were made: a model behind an alias may be exchanged."""
LEAST: Final = 0.2
MOST: Final = 5.0
"""A ratio beyond these is a server that counts something else."""


class Calibration(Struct, frozen=True, kw_only=True):
    """What one model's reports taught: its tokens per unit of weight, and how far single requests stray from that."""

    ratio: float = 1.0
    spread: float = 0.25
    samples: int = 0


UNCALIBRATED: Final = Calibration()


def weigh(text: str) -> int:
    """The weight of a text; never less than it would be without its end."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def weigh_json(value: Any) -> int:
    return -(-len(msgspec.json.encode(value)) // BYTES_PER_TOKEN)


def weigh_message(message: Message) -> int:
    weight = MESSAGE + weigh(message.text)
    if message.name:
        weight += weigh(message.name) + 1
    for call in message.calls:
        weight += CALL + weigh(call.tool) + weigh_json(call.arguments)
    for attachment in message.attachments:
        weight += _weigh_attachment(attachment)
    return weight


def weigh_messages(messages: Iterable[Message]) -> int:
    return sum(map(weigh_message, messages))


def weigh_tools(tools: Sequence[ToolSpec]) -> int:
    return sum(TOOL + weigh(tool.name) + weigh(tool.description) + weigh_json(tool.parameters) for tool in tools)


def weigh_request(request: Request) -> int:
    """The weight of everything a model reads. Reasoning is left out: most vendors do not send it again."""
    return MESSAGE + weigh(request.system) + weigh_tools(request.tools) + weigh_messages(request.messages)


def expected(weight: int, calibration: Calibration = UNCALIBRATED) -> int:
    """The likeliest number of tokens."""
    return ceil(weight * calibration.ratio)


def ceiling(weight: int, calibration: Calibration = UNCALIBRATED) -> int:
    """More tokens than nearly every request of this weight has: what a budget reserves and a window must hold."""
    return ceil(weight * calibration.ratio * (1 + 2 * calibration.spread))


def observe(calibration: Calibration, *, weight: int, tokens: int) -> Calibration:
    """What is known after a model reported `tokens` input tokens for a request of this weight."""
    if weight < SMALL or tokens <= 0:
        return calibration
    ratio = min(MOST, max(LEAST, tokens / weight))
    step = max(SLOWEST, 1 / (calibration.samples + 1))
    astray = abs(ratio - calibration.ratio) / calibration.ratio if calibration.samples else 0.1
    return Calibration(
        ratio=min(MOST, max(LEAST, calibration.ratio + step * (ratio - calibration.ratio))),
        spread=min(1.0, max(0.02, calibration.spread + step * (astray - calibration.spread))),
        samples=calibration.samples + 1,
    )


def _weigh_attachment(attachment: Attachment) -> int:
    return IMAGE if attachment.media.startswith("image/") else FILE + weigh(attachment.name)
