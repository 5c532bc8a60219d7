"""What an account is configured with, and the factory that builds it. Loads the vendor's library only to build one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, Field

from everhold.errors import Misuse
from everhold.infra.extras import describe_install
from everhold.ports.plugin import Context
from everhold.secret import Secret

if TYPE_CHECKING:
    from everhold.platforms.discord.adapter import Discord

NAME: Final = "discord"


class DiscordSettings(BaseModel):
    """`platforms: discord: ACCOUNT:`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: Secret = Field(description="The bot's token, from the developer portal, Bot, Reset Token")
    base_url: str | None = None
    """Where the API answers, version and all, if not at its usual place."""


class _Factory:
    @property
    def Settings(self) -> type[DiscordSettings]:
        return DiscordSettings

    def __call__(self, settings: DiscordSettings, context: Context) -> Discord:
        try:
            from everhold.platforms.discord.adapter import Discord
        except ImportError as error:
            raise Misuse(f"its library is missing: {error.name}", remedy=describe_install("discord")) from error
        return Discord(settings, context)


factory: Final = _Factory()
