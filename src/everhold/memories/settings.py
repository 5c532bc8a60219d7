"""What every remote memory's section in config.yaml may say."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from everhold.infra.secret import SecretString

ASKED_IN_SETUP: Final = {"everhold": "asked"}
"""Marks what `everhold setup memory` asks for; the rest has defaults that do."""


class MemorySection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RemoteMemorySettings(MemorySection):
    """A service behind an address."""

    api_key: SecretString | None = Field(
        default=None,
        description="write `api_key_env`: the variable that holds it",
        json_schema_extra={**ASKED_IN_SETUP},
    )
    deadline_seconds: float = Field(default=30.0, gt=0, le=600, description="after which a write is given up")
    visible_seconds: float = Field(
        default=5.0, ge=0, le=600, description="how long after its deadline a write may still be carried out there"
    )
    confirm: bool = Field(default=True, description="read back what was stored: some services only say that it was")
    share_agents: bool = Field(default=False, description="let this agent recall what others kept in the same place")


def fill_agent_name(template: str, agent: str) -> str:
    """`{agent}` in a name."""
    return template.replace("{agent}", agent)
