"""What an account is configured with, and the factory that builds it. Loads the vendor's library only to build one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from everhold.errors import InvalidRequest
from everhold.infra.extras import describe_install
from everhold.infra.secret import SecretString
from everhold.ports.plugin import PluginContext

if TYPE_CHECKING:
    from everhold.platforms.telegram.adapter import TelegramPlatform

NAME: Final = "telegram"


class TelegramWebhookSettings(BaseModel):
    """Telegram calls us, through a reverse proxy of yours that has the certificate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^https://\S+$")
    """Where Telegram finds the proxy. Its path is the path that is listened on."""
    host: str = "127.0.0.1"
    port: int = Field(default=8766, ge=0, le=65535)


class TelegramSettings(BaseModel):
    """`platforms: telegram: ACCOUNT:`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: SecretString = Field(description="The token that @BotFather gave you for the bot")
    base_url: str | None = None
    """Where the Bot API answers, if not at its usual place."""
    poll_seconds: int = Field(default=30, ge=0, le=50)
    """How long one look for news may wait for some."""
    format: Literal["markdown", "plain"] = "markdown"
    """Show what models mark as bold, code and the like, or exactly what they wrote."""
    webhook: TelegramWebhookSettings | None = None
    """Be called instead of asking. Without it nothing has to be reachable from outside."""
    webhook_secret: SecretString | None = None
    """What proves that it is Telegram who calls: 32 or more letters and digits."""

    @field_validator("webhook_secret")
    @classmethod
    def _check_secret_length(cls, secret: SecretString | None) -> SecretString | None:
        if secret is not None and not re.fullmatch(r"[A-Za-z0-9_-]{32,256}", secret.reveal()):
            raise ValueError("must be 32 to 256 letters, digits, _ or -: openssl rand -hex 32")
        return secret

    @model_validator(mode="after")
    def _require_webhook_secret(self) -> TelegramSettings:
        if self.webhook is not None and self.webhook_secret is None:
            raise ValueError("a webhook needs webhook_secret_env: without it anybody could call")
        return self


class TelegramFactory:
    @property
    def Settings(self) -> type[TelegramSettings]:
        return TelegramSettings

    def __call__(self, settings: TelegramSettings, context: PluginContext) -> TelegramPlatform:
        try:
            from everhold.platforms.telegram.adapter import TelegramPlatform
        except ImportError as error:
            raise InvalidRequest(
                f"its library is missing: {error.name}", remedy=describe_install("telegram")
            ) from error
        return TelegramPlatform(settings, context)


factory: Final = TelegramFactory()
