"""The settings of an account, and the factory that builds it. The vendor's library is imported only to build one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, Field

from everhold.errors import InvalidRequest
from everhold.infra.extras import describe_install
from everhold.infra.secret import SecretString
from everhold.ports.plugin import PluginContext

if TYPE_CHECKING:
    from everhold.platforms.discord.adapter import DiscordPlatform

NAME: Final = "discord"


class DiscordSettings(BaseModel):
    """`platforms: discord: ACCOUNT:`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: SecretString = Field(description="The bot's token, from the developer portal, Bot, Reset Token")
    base_url: str | None = None
    """The URL of the API with its version, if it is not the usual one."""


class DiscordFactory:
    @property
    def Settings(self) -> type[DiscordSettings]:
        return DiscordSettings

    def __call__(self, settings: DiscordSettings, context: PluginContext) -> DiscordPlatform:
        try:
            from everhold.platforms.discord.adapter import DiscordPlatform
        except ImportError as error:
            raise InvalidRequest(f"its library is missing: {error.name}", remedy=describe_install("discord")) from error
        return DiscordPlatform(settings, context)


factory: Final = DiscordFactory()
