"""A language model for the real servers of Honcho and Hindsight, on loopback.

It derives one fact from each line that it is asked about, so what a test finds was derived by the server from what
everhold sent. To any other question it answers with everything that it was shown, so what a server shows its model
about somebody else becomes visible.
"""

from __future__ import annotations

import json
import re
from typing import Any

from everhold.testing.services.base import ServiceRequest
from everhold.testing.services.embeddings import EmbeddingsService

DERIVED = "It is known that"
"""Begins every derived fact. Nobody says it."""
_TARGET_PEER = re.compile(r"Target peer:\s*(\S+)\s+Messages to analyze:\s*<messages>\n(.*)\n</messages>", re.DOTALL)
_CHUNK = re.compile(r"^Extract facts from the following chunk\..*?^Content:\n(.*)", re.DOTALL | re.MULTILINE)


class DerivingModelService(EmbeddingsService):
    """Embeddings of hashed words, and chat completions that derive facts in the format of the server that asks."""

    def chat(self, call: ServiceRequest) -> dict[str, Any]:
        answer = super().chat(call)
        text = read_prompt(call)
        derived = _derive_for_honcho(text) or _derive_for_hindsight(text)
        answer["choices"][0]["message"]["content"] = f"I was shown: {text}" if derived is None else json.dumps(derived)
        return answer

    def list_prompts(self) -> list[str]:
        """Return every prompt that a server sent."""
        return [read_prompt(call) for call in self.find_requests("/chat/completions$", "POST")]


def read_prompt(call: ServiceRequest) -> str:
    return "\n".join(str(message.get("content")) for message in call.json["messages"])


def _derive_for_honcho(prompt: str) -> dict[str, Any] | None:
    """Honcho asks about one peer, and shows the lines of others as context."""
    asked = _TARGET_PEER.search(prompt)
    if asked is None:
        return None
    peer, lines = asked.groups()
    said = [line.split(f" {peer}: ", 1)[1] for line in lines.splitlines() if f" {peer}: " in line]
    return {"explicit": [{"content": f"{DERIVED} {peer} said: {text}"} for text in said]}


def _derive_for_hindsight(prompt: str) -> dict[str, Any] | None:
    asked = _CHUNK.search(prompt)
    if asked is None:
        return None
    nothing = {"when": "N/A", "where": "N/A", "who": "N/A", "why": "N/A", "fact_type": "world", "entities": []}
    lines = [line.strip() for line in asked[1].splitlines() if line.strip()]
    return {"facts": [{"what": f"{DERIVED} {line}", **nothing} for line in lines]}
