"""What a Hindsight instance's section in config.yaml may say."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from everhold.memories.settings import ASKED_IN_SETUP, RemoteMemorySettings


class HindsightSettings(RemoteMemorySettings):
    """A Hindsight server, and which banks are used."""

    base_url: str = Field(
        default="http://localhost:8888", description="where Hindsight is served", json_schema_extra={**ASKED_IN_SETUP}
    )
    bank: str = Field(
        default="{agent}",
        min_length=1,
        description="the bank; {agent}, {person} and {session} are filled in",
        json_schema_extra={**ASKED_IN_SETUP},
    )
    mission: str = Field(default="", description="what the bank is for, told to it when it is first used")
    template: dict[str, Any] = Field(default_factory=dict, description="a bank template, imported when first used")
    tags: tuple[str, ...] = Field(default=(), description="put on everything that is retained")
    context: str = Field(default="conversation", description="what is said to be the context of an exchange")
    budget: Literal["low", "mid", "high"] = Field(default="mid", description="how hard recall searches")
    recall_tokens: int = Field(default=4_096, ge=64, le=65_536, description="tokens recall may give back")
    recall_types: tuple[Literal["world", "experience", "observation"], ...] = Field(
        default=("world", "experience", "observation"), description="kinds of memories that are recalled"
    )
    reflect_seconds: float = Field(default=90.0, gt=0, le=600, description="how long hindsight_reflect may think")
    confirm_seconds: float = Field(
        default=20.0, ge=0, le=600, description="how long to wait for what was accepted to be stored, at a time"
    )
