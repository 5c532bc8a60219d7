"""The section of a Supermemory instance in config.yaml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from everhold.memories.settings import ASKED_IN_SETUP, RemoteMemorySettings


class SupermemorySettings(RemoteMemorySettings):
    """A Supermemory account and the namespaces to use."""

    base_url: str = Field(
        default="",
        description="where Supermemory is served; empty for its own cloud",
        json_schema_extra={**ASKED_IN_SETUP},
    )
    namespace: str = Field(
        default="{agent}",
        min_length=1,
        description="the namespace; {agent} and {person} are filled in",
        json_schema_extra={**ASKED_IN_SETUP},
    )
    task: Literal["memory", "superrag"] = Field(
        default="memory", description="superrag stores texts for search and learns nothing from them"
    )
    dreaming: Literal["dynamic", "instant"] = Field(
        default="dynamic", description="instant learns at once, at a higher price"
    )
    search_mode: Literal["hybrid", "memories", "chunks"] = Field(default="hybrid", description="what is searched")
    threshold: float = Field(default=0.0, ge=0, le=1, description="minimum relevance of a hit to be recalled")
    confirm_seconds: float = Field(
        default=20.0, ge=0, le=600, description="how long one attempt waits for an accepted document to be stored"
    )
