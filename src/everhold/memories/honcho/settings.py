"""The section of a Honcho instance in config.yaml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from everhold.memories.settings import ASKED_IN_SETUP, RemoteMemorySettings


class HonchoSettings(RemoteMemorySettings):
    """A Honcho workspace and the names of its peers."""

    base_url: str = Field(
        default="https://api.honcho.dev", description="where Honcho is served", json_schema_extra={**ASKED_IN_SETUP}
    )
    workspace: str = Field(
        default="everhold",
        min_length=1,
        description="the workspace; everything in one workspace belongs together",
        json_schema_extra={**ASKED_IN_SETUP},
    )
    ai_peer: str = Field(default="{agent}", min_length=1, description="the agent's own peer")
    peer_name: str = Field(default="", description="the peer of a speaker who is unknown, or of all speakers if pinned")
    pin_peer_name: bool = Field(default=False, description="use `peer_name` for all speakers")
    user_peer_aliases: dict[str, str] = Field(default_factory=dict, description="person -> peer")
    runtime_peer_prefix: str = Field(default="", description="prefix that turns a person's name into a peer's name")
    reasoning: Literal["minimal", "low", "medium", "high", "max"] = Field(
        default="low", description="the reasoning level of honcho_reasoning unless the model chooses one"
    )
    reasoning_seconds: float = Field(default=60.0, gt=0, le=600, description="how long honcho_reasoning may take")
    workspace_words: bool = Field(default=True, description="search messages in addition to conclusions")
