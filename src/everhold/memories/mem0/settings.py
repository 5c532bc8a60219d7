"""What a Mem0 instance's section in config.yaml may say."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from everhold.memories.settings import ASKED_IN_SETUP, RemoteMemorySettings


class Mem0Settings(RemoteMemorySettings):
    """Mem0's platform, or its library."""

    mode: Literal["platform", "local"] = Field(default="platform", description="local runs Mem0 in this process")
    base_url: str = Field(
        default="https://api.mem0.ai", description="where the platform is served", json_schema_extra={**ASKED_IN_SETUP}
    )
    user: str = Field(
        default="{agent}",
        min_length=1,
        description="the user_id; {agent} and {person} are filled in",
        json_schema_extra={**ASKED_IN_SETUP},
    )
    infer: bool = Field(
        default=False, description="let a language model extract facts: what it makes of a turn cannot be verified"
    )
    visible_seconds: float = Field(default=30.0, ge=0, le=600, description="how long what was accepted may stay unseen")
    confirm_seconds: float = Field(default=10.0, ge=0, le=600, description="how long to wait for it to be stored")
    config: dict[str, Any] = Field(
        default_factory=dict, description="mode local: what Memory.from_config takes; vectors go to the home if unsaid"
    )
