"""The settings of an account, and the factory that builds it. The vendor's library is imported only to build one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from everhold.errors import InvalidRequest
from everhold.infra.extras import describe_install
from everhold.infra.secret import SecretString
from everhold.ports.plugin import PluginContext

if TYPE_CHECKING:
    from everhold.platforms.matrix.adapter import MatrixPlatform

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


class MatrixFactory:
    @property
    def Settings(self) -> type[MatrixSettings]:
        return MatrixSettings

    def __call__(self, settings: MatrixSettings, context: PluginContext) -> MatrixPlatform:
        try:
            from everhold.platforms.matrix.adapter import MatrixPlatform
        except ImportError as error:
            raise InvalidRequest(f"its library is missing: {error.name}", remedy=describe_install("matrix")) from error
        return MatrixPlatform(settings, context)


factory: Final = MatrixFactory()
