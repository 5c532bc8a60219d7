"""The settings of an account, and the factory that builds it. The vendor's library is imported only to build one."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from everhold.infra.secret import SecretString
from everhold.platforms.factory import PlatformFactory

NAME: Final = "discord"


class DiscordSettings(BaseModel):
    """`platforms: discord: ACCOUNT:`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: SecretString = Field(description="The bot's token, from the developer portal, Bot, Reset Token")
    base_url: str | None = None
    """The URL of the API with its version, if it is not the usual one."""


factory: Final = PlatformFactory(DiscordSettings, "everhold.platforms.discord.adapter:DiscordPlatform", extra="discord")
