"""The settings of an account, and the factory that builds it. The vendor's library is imported only to build one."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from everhold.infra.secret import SecretString
from everhold.platforms.factory import PlatformFactory

NAME: Final = "slack"


class SlackEventsSettings(BaseModel):
    """Slack calls the gateway through your reverse proxy, which has the certificate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^https://\S+$")
    """The Request URL in the app's settings. The gateway listens on its path."""
    host: str = "127.0.0.1"
    port: int = Field(default=8767, ge=0, le=65535)


class SlackSettings(BaseModel):
    """`platforms: slack: ACCOUNT:`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bot_token: SecretString = Field(description="The token for sending: xoxb-…, from OAuth & Permissions")
    app_token: SecretString | None = Field(
        default=None,
        description="The token for receiving: xapp-…, from Basic Information, App-Level Tokens",
        json_schema_extra={"everhold": "asked"},
    )
    base_url: str | None = None
    """The URL of the Web API, if it is not the usual one."""
    events: SlackEventsSettings | None = None
    """Receive HTTP calls instead of listening through a socket. Without it nothing has to be reachable from outside."""
    signing_secret: SecretString | None = None
    """The secret with which Slack signs its calls: Basic Information, Signing Secret."""

    @model_validator(mode="after")
    def _check_inbound_path(self) -> SlackSettings:
        if self.events is not None and (self.signing_secret is None or len(self.signing_secret.reveal().strip()) < 16):
            raise ValueError("events need signing_secret_env, because without it anyone could call")
        if self.events is None and self.app_token is None:
            raise ValueError("app_token_env is needed to listen through a socket, or events to receive calls")
        return self


factory: Final = PlatformFactory(SlackSettings, "everhold.platforms.slack.adapter:SlackPlatform", extra="slack")
