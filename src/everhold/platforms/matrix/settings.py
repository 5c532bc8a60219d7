"""The settings of an account, and the factory that builds it. The vendor's library is imported only to build one."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from everhold.infra.secret import SecretString
from everhold.platforms.factory import PlatformFactory

NAME: Final = "matrix"


def _validate_homeserver(text: str) -> str:
    if not text.startswith(("https://", "http://")) or any(char <= " " for char in text):
        raise ValueError("a homeserver is a URL such as https://matrix.example.org")
    return text.rstrip("/")


def _validate_user_id(text: str) -> str:
    if text and (not text.startswith("@") or ":" not in text):
        raise ValueError("a user is a whole Matrix id such as @agent:example.org")
    return text


class MatrixSettings(BaseModel):
    """`platforms: matrix: ACCOUNT:`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    homeserver: Annotated[str, AfterValidator(_validate_homeserver)] = Field(
        description="The URL of its homeserver, for example https://matrix.example.org"
    )
    token: SecretString = Field(description="The access token of its Matrix account")
    user: Annotated[str, AfterValidator(_validate_user_id)] = ""
    """The user of the token, for example @agent:example.org. The homeserver is asked, and must agree."""
    bots: tuple[Annotated[str, AfterValidator(_validate_user_id)], ...] = ()
    """Other bots in its rooms. Matrix does not distinguish them from people; other everhold agents are recognised
    anyway."""
    poll_seconds: int = Field(default=30, ge=0, le=120)
    """How long one sync may wait for events."""


factory: Final = PlatformFactory(MatrixSettings, "everhold.platforms.matrix.adapter:MatrixPlatform", extra="matrix")
