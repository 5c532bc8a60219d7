"""A fake of OpenAI's embeddings API on loopback: words are hashed into a vector, so similar texts are near.

For memories that run in process and need an embedding service.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import struct
from typing import Any, Final

from everhold.testing.services.base import LoopbackService, ServiceRequest

_WORD: Final = re.compile(r"\w+")


class EmbeddingsService(LoopbackService):
    """`url + "/v1"` is its base."""

    routes = (("POST", "/v1/embeddings", "embed"), ("POST", "/v1/chat/completions", "chat"))

    def __init__(self, *, dimensions: int = 64) -> None:
        super().__init__()
        self.state = None
        self.dimensions = dimensions

    def embed(self, call: ServiceRequest) -> dict[str, Any]:
        given = call.json["input"]
        texts = given if isinstance(given, list) else [given]
        vectors = [self._make_vector(str(text)) for text in texts]
        packed = call.json.get("encoding_format") == "base64"
        data = [
            {
                "object": "embedding",
                "index": number,
                "embedding": base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if packed else vector,
            }
            for number, vector in enumerate(vectors)
        ]
        return {"object": "list", "data": data, "model": "words", "usage": {"prompt_tokens": 1, "total_tokens": 1}}

    def chat(self, call: ServiceRequest) -> dict[str, Any]:
        """Answer as a language model without useful content."""
        return {
            "id": "chat",
            "object": "chat.completion",
            "created": 0,
            "model": "none",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hm"}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }

    def _make_vector(self, text: str) -> list[float]:
        vector = [0.0] * self.dimensions
        for word in _WORD.findall(text.casefold()):
            vector[int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % self.dimensions] += 1.0
        length = math.sqrt(sum(value * value for value in vector))
        return [value / length for value in vector] if length else [1.0, *vector[1:]]
