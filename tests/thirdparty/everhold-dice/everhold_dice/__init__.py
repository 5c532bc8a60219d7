"""A stranger's tool: it rolls dice that always show their highest number."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from everhold import Context, Effect, Result, ToolContext, ToolSpec
from everhold.secret import Secret


class DiceSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sides: int = 6
    seal: Secret | None = None


class Dice:
    Settings = DiceSettings
    spec = ToolSpec(name="roll", description="Rolls a die.", parameters={"type": "object", "properties": {}})
    effect = Effect.PURE

    def __init__(self, settings: DiceSettings, context: Context) -> None:
        self.settings = settings
        self.name = context.instance
        self.deadline = float(settings.sides)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        sealed = ", sealed" if self.settings.seal else ""
        return Result(text=f"{self.settings.sides} of {self.name} for {context.agent}{sealed}")

    async def probe(self, context: ToolContext) -> Result | None:
        return None
