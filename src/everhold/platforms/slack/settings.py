"""What an account is configured with, and the factory that builds it. Loads the vendor's library only to build one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, Field

from everhold.errors import Misuse
from everhold.ports.plugin import Context
from everhold.secret import Secret

if TYPE_CHECKING:
    from everhold.platforms.slack.adapter import Slack

NAME: Final = "slack"


class SlackSettings(BaseModel):
    """`platforms: slack: ACCOUNT:`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bot_token: Secret = Field(description="What the app speaks with: xoxb-…, from OAuth & Permissions")
    app_token: Secret = Field(description="What it listens with: xapp-…, from Basic Information, App-Level Tokens")
    base_url: str | None = None
    """Where the Web API answers, if not at its usual place."""


class _Factory:
    @property
    def Settings(self) -> type[SlackSettings]:
        return SlackSettings

    def __call__(self, settings: SlackSettings, context: Context) -> Slack:
        try:
            from everhold.platforms.slack.adapter import Slack
        except ImportError as error:
            raise Misuse(f"its library is missing: {error.name}", remedy="pip install 'everhold[slack]'") from error
        return Slack(settings, context)


factory: Final = _Factory()
