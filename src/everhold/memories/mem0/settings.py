"""The section of a Mem0 instance in config.yaml."""

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
        default=False, description="let a language model extract facts, which cannot be verified afterwards"
    )
    visible_seconds: float = Field(
        default=30.0, ge=0, le=600, description="how long an accepted memory may stay invisible"
    )
    confirm_seconds: float = Field(
        default=10.0, ge=0, le=600, description="how long one attempt waits for a memory to be stored"
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="mode local: the argument of Memory.from_config; vectors are stored in the home by default",
    )
