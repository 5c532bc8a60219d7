"""What an account is configured with, and the factory that builds it. Loads the vendor's library only to build one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from everhold.errors import InvalidRequest
from everhold.infra.extras import describe_install
from everhold.infra.secret import SecretString
from everhold.ports.plugin import PluginContext

if TYPE_CHECKING:
    from everhold.platforms.slack.adapter import SlackPlatform

NAME: Final = "slack"


class SlackEventsSettings(BaseModel):
    """Slack calls us, through a reverse proxy of yours that has the certificate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^https://\S+$")
    """The Request URL in the app's settings. Its path is the path that is listened on."""
    host: str = "127.0.0.1"
    port: int = Field(default=8767, ge=0, le=65535)


class SlackSettings(BaseModel):
    """`platforms: slack: ACCOUNT:`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bot_token: SecretString = Field(description="What the app speaks with: xoxb-…, from OAuth & Permissions")
    app_token: SecretString | None = Field(
        default=None,
        description="What it listens with: xapp-…, from Basic Information, App-Level Tokens",
        json_schema_extra={"everhold": "asked"},
    )
    base_url: str | None = None
    """Where the Web API answers, if not at its usual place."""
    events: SlackEventsSettings | None = None
    """Be called instead of listening through a socket. Without it nothing has to be reachable from outside."""
    signing_secret: SecretString | None = None
    """What Slack signs its calls with: Basic Information, Signing Secret."""

    @model_validator(mode="after")
    def _check_inbound_path(self) -> SlackSettings:
        if self.events is not None and (self.signing_secret is None or len(self.signing_secret.reveal().strip()) < 16):
            raise ValueError("events need signing_secret_env: without it anybody could call")
        if self.events is None and self.app_token is None:
            raise ValueError("it needs app_token_env to listen with, or events to be called")
        return self


class SlackFactory:
    @property
    def Settings(self) -> type[SlackSettings]:
        return SlackSettings

    def __call__(self, settings: SlackSettings, context: PluginContext) -> SlackPlatform:
        try:
            from everhold.platforms.slack.adapter import SlackPlatform
        except ImportError as error:
            raise InvalidRequest(f"its library is missing: {error.name}", remedy=describe_install("slack")) from error
        return SlackPlatform(settings, context)


factory: Final = SlackFactory()
