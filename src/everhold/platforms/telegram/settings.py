"""What an account is configured with, and the factory that builds it. Loads the vendor's library only to build one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, Field

from everhold.errors import Misuse
from everhold.ports.plugin import Context
from everhold.secret import Secret

if TYPE_CHECKING:
    from everhold.platforms.telegram.adapter import Telegram

NAME: Final = "telegram"


class TelegramSettings(BaseModel):
    """`platforms: telegram: ACCOUNT:`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: Secret = Field(description="The token that @BotFather gave you for the bot")
    base_url: str | None = None
    """Where the Bot API answers, if not at its usual place."""
    poll_seconds: int = Field(default=30, ge=0, le=50)
    """How long one look for news may wait for some."""


class _Factory:
    @property
    def Settings(self) -> type[TelegramSettings]:
        return TelegramSettings

    def __call__(self, settings: TelegramSettings, context: Context) -> Telegram:
        try:
            from everhold.platforms.telegram.adapter import Telegram
        except ImportError as error:
            raise Misuse(f"its library is missing: {error.name}", remedy="pip install 'everhold[telegram]'") from error
        return Telegram(settings, context)


factory: Final = _Factory()
