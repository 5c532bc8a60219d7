"""What a Honcho instance's section in config.yaml may say."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from everhold.memories.settings import ASKED_IN_SETUP, RemoteMemorySettings


class HonchoSettings(RemoteMemorySettings):
    """A Honcho workspace, and who is who in it."""

    base_url: str = Field(
        default="https://api.honcho.dev", description="where Honcho is served", json_schema_extra={**ASKED_IN_SETUP}
    )
    workspace: str = Field(
        default="everhold",
        min_length=1,
        description="the workspace; what is kept in one is kept together",
        json_schema_extra={**ASKED_IN_SETUP},
    )
    ai_peer: str = Field(default="{agent}", min_length=1, description="the agent's own peer")
    peer_name: str = Field(default="", description="the peer of whoever speaks, if it is pinned or nobody knows better")
    pin_peer_name: bool = Field(default=False, description="everybody who speaks is `peer_name`")
    user_peer_aliases: dict[str, str] = Field(default_factory=dict, description="person -> peer")
    runtime_peer_prefix: str = Field(default="", description="put before a person's name to make a peer's")
    reasoning: Literal["minimal", "low", "medium", "high", "max"] = Field(
        default="low", description="how hard honcho_reasoning thinks unless the model says otherwise"
    )
    reasoning_seconds: float = Field(default=60.0, gt=0, le=600, description="how long honcho_reasoning may think")
    workspace_words: bool = Field(default=True, description="search what was said besides what was concluded")
