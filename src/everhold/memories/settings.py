"""The settings that every remote memory's section in config.yaml has."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from everhold.infra.secret import SecretString

ASKED_IN_SETUP: Final = {"everhold": "asked"}
"""Marks the settings that `everhold setup memory` asks for. The others have working defaults."""


class MemorySection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RemoteMemorySettings(MemorySection):
    """A memory service at a URL."""

    api_key: SecretString | None = Field(
        default=None,
        description="write `api_key_env`: the variable that holds it",
        json_schema_extra={**ASKED_IN_SETUP},
    )
    deadline_seconds: float = Field(default=30.0, gt=0, le=600, description="after which a write attempt is given up")
    visible_seconds: float = Field(
        default=5.0, ge=0, le=600, description="how long after its deadline the service may still carry out a write"
    )
    confirm: bool = Field(
        default=True, description="read back what was stored, because some services only claim that it was"
    )
    share_agents: bool = Field(
        default=False, description="let this agent recall what other agents stored in the same place"
    )


def fill_agent_name(template: str, agent: str) -> str:
    """Replace `{agent}` in a template with the agent's name."""
    return template.replace("{agent}", agent)
