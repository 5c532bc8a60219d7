"""A tool by another author: rolls dice that always show their highest number."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from everhold import PluginContext, ToolContext, ToolEffect, ToolResult, ToolSpec
from everhold.infra.secret import SecretString


class DiceSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sides: int = 6
    seal: SecretString | None = None


class Dice:
    Settings = DiceSettings
    spec = ToolSpec(name="roll", description="Rolls a die.", parameters={"type": "object", "properties": {}})
    effect = ToolEffect.PURE

    def __init__(self, settings: DiceSettings, context: PluginContext) -> None:
        self.settings = settings
        self.name = context.instance
        self.deadline = float(settings.sides)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        sealed = ", sealed" if self.settings.seal else ""
        return ToolResult(text=f"{self.settings.sides} of {self.name} for {context.agent}{sealed}")

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None
