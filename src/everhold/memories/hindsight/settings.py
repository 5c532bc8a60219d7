"""The section of a Hindsight instance in config.yaml."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from everhold.memories.settings import ASKED_IN_SETUP, RemoteMemorySettings


class HindsightSettings(RemoteMemorySettings):
    """A Hindsight server and the banks to use."""

    base_url: str = Field(
        default="http://localhost:8888", description="where Hindsight is served", json_schema_extra={**ASKED_IN_SETUP}
    )
    bank: str = Field(
        default="{agent}",
        min_length=1,
        description="the bank; {agent}, {person} and {session} are filled in",
        json_schema_extra={**ASKED_IN_SETUP},
    )
    mission: str = Field(default="", description="what the bank is for, sent to the server when the bank is first used")
    template: dict[str, Any] = Field(default_factory=dict, description="a bank template, imported when first used")
    tags: tuple[str, ...] = Field(default=(), description="put on every retained document")
    context: str = Field(default="conversation", description="the context that is sent with an exchange")
    budget: Literal["low", "mid", "high"] = Field(default="mid", description="how thoroughly recall searches")
    recall_tokens: int = Field(default=4_096, ge=64, le=65_536, description="tokens that recall may return")
    recall_types: tuple[Literal["world", "experience", "observation"], ...] = Field(
        default=("world", "experience", "observation"), description="kinds of memories that are recalled"
    )
    reflect_seconds: float = Field(default=90.0, gt=0, le=600, description="how long hindsight_reflect may take")
    confirm_seconds: float = Field(
        default=20.0, ge=0, le=600, description="how long one attempt waits for accepted documents to be stored"
    )
