"""What an account is configured with, and the factory that builds it. Loads the vendor's library only to build one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from everhold.errors import Misuse
from everhold.infra.extras import describe_install
from everhold.ports.plugin import Context
from everhold.secret import Secret

if TYPE_CHECKING:
    from everhold.platforms.matrix.adapter import Matrix

NAME: Final = "matrix"


def _url(text: str) -> str:
    if not text.startswith(("https://", "http://")) or any(char <= " " for char in text):
        raise ValueError("a homeserver is an address such as https://matrix.example.org")
    return text.rstrip("/")


def _user(text: str) -> str:
    if text and (not text.startswith("@") or ":" not in text):
        raise ValueError("a user is a whole Matrix id such as @agent:example.org")
    return text


class MatrixSettings(BaseModel):
    """`platforms: matrix: ACCOUNT:`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    homeserver: Annotated[str, AfterValidator(_url)] = Field(
        description="Where its homeserver answers, for example https://matrix.example.org"
    )
    token: Secret = Field(description="The access token of its Matrix account")
    user: Annotated[str, AfterValidator(_user)] = ""
    """Whose token it is, for example @agent:example.org. The homeserver is asked, and must agree."""
    bots: tuple[Annotated[str, AfterValidator(_user)], ...] = ()
    """Other programs in its rooms. Matrix does not tell them from people; other everholds are recognised anyway."""
    poll_seconds: int = Field(default=30, ge=0, le=120)
    """How long one look for news may wait for some."""


class _Factory:
    @property
    def Settings(self) -> type[MatrixSettings]:
        return MatrixSettings

    def __call__(self, settings: MatrixSettings, context: Context) -> Matrix:
        try:
            from everhold.platforms.matrix.adapter import Matrix
        except ImportError as error:
            raise Misuse(f"its library is missing: {error.name}", remedy=describe_install("matrix")) from error
        return Matrix(settings, context)


factory: Final = _Factory()
