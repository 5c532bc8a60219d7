"""The settings of an account, and the factory that builds it. The vendor's library is imported only to build one."""

from __future__ import annotations

import re
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from everhold.infra.secret import SecretString
from everhold.platforms.factory import PlatformFactory

NAME: Final = "telegram"


class TelegramWebhookSettings(BaseModel):
    """Telegram calls the gateway through your reverse proxy, which has the certificate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^https://\S+$")
    """The URL of the proxy. The gateway listens on its path."""
    host: str = "127.0.0.1"
    port: int = Field(default=8766, ge=0, le=65535)


class TelegramSettings(BaseModel):
    """`platforms: telegram: ACCOUNT:`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: SecretString = Field(description="The token that @BotFather gave you for the bot")
    base_url: str | None = None
    """The URL of the Bot API, if it is not the usual one."""
    poll_seconds: int = Field(default=30, ge=0, le=50)
    """How long one request for updates may wait."""
    format: Literal["markdown", "plain"] = "markdown"
    """Whether to render the model's Markdown (bold, code, …) or to show it as written."""
    webhook: TelegramWebhookSettings | None = None
    """Receive calls from Telegram instead of polling. Without it nothing has to be reachable from outside."""
    webhook_secret: SecretString | None = None
    """The secret that proves that Telegram is the caller: 32 or more letters and digits."""

    @field_validator("webhook_secret")
    @classmethod
    def _check_secret_length(cls, secret: SecretString | None) -> SecretString | None:
        if secret is not None and not re.fullmatch(r"[A-Za-z0-9_-]{32,256}", secret.reveal()):
            raise ValueError("must be 32 to 256 letters, digits, _ or -: openssl rand -hex 32")
        return secret

    @model_validator(mode="after")
    def _require_webhook_secret(self) -> TelegramSettings:
        if self.webhook is not None and self.webhook_secret is None:
            raise ValueError("a webhook needs webhook_secret_env, because without it anyone could call")
        return self


factory: Final = PlatformFactory(
    TelegramSettings, "everhold.platforms.telegram.adapter:TelegramPlatform", extra="telegram"
)
