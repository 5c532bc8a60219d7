"""A memory provider by another author: stores each item as a line of a file, and can be asked what it has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from everhold import (
    DeliveryGuarantee,
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryQuery,
    MemoryRetraction,
    PluginContext,
)


class TinSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    most: int = 10


class Tin:
    Settings = TinSettings
    delivery = DeliveryGuarantee.PROBE
    capabilities = frozenset({MemoryCapability.PROBE, MemoryCapability.RETRACT})
    deadline = 5.0

    def __init__(self, settings: TinSettings, context: PluginContext) -> None:
        self.settings = settings
        self.file = Path(context.directory) / "tin.jsonl"

    def lines(self) -> list[dict[str, Any]]:
        kept = [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []
        gone = {key for line in kept for key in line["takes_back"]}
        return [line for line in kept if line["key"] not in gone]

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        with self.file.open("a") as file:
            for item in batch.items:
                line: dict[str, Any] = {"key": item.key, "at": item.at, "session": item.session, "takes_back": []}
                if isinstance(item, MemoryRetraction):
                    line |= {"takes_back": item.keys, "text": "", "audience": []}
                elif isinstance(item, Exchange):
                    texts = [one.text for one in (*item.heard, *item.said)]
                    line |= {"text": "\n".join(texts), "audience": item.stamp.audience}
                else:
                    old = [item.supersedes] if item.supersedes else []
                    text = "" if item.action == "remove" else item.text
                    line |= {"text": text, "audience": item.stamp.audience, "takes_back": old}
                file.write(json.dumps(line) + "\n")
        return {item.key: item.key for item in batch.items}

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        kept = self.file.read_text() if self.file.exists() else ""
        return [item.key for item in batch.items if f'"key": {json.dumps(item.key)}' in kept]

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        words = {word.strip("?!.,").lower() for word in query.text.split()}
        found = [
            MemoryHit(text=line["text"], session=line["session"], at=line["at"], key=line["key"], score=float(score))
            for line in self.lines()
            if set(query.audience) <= set(line["audience"])
            and (score := len(words & {word.strip("?!.,").lower() for word in line["text"].split()}))
        ]
        return sorted(found, key=lambda one: -one.score)[: min(query.limit, self.settings.most)]
