"""What the values of a configuration look like: names, URLs, identities, and sections that cannot be changed."""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from everhold.config.literals import is_env_name
from everhold.config.problems import find_nearest

T = TypeVar("T")

NAME_LIMIT: Final = 64


class Part(BaseModel):
    """Base of every section: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


def refusal(message: str, remedy: str = "") -> PydanticCustomError:
    """What a validator raises: a message and a remedy, both free of the value itself."""
    return PydanticCustomError("refused", "{text}", {"text": message, "remedy": remedy})


def _name(text: str) -> str:
    if not (0 < len(text) <= NAME_LIMIT and text[0].isalnum() and text.isascii()):
        raise refusal("is not a name", f"letters, digits, - and _, at most {NAME_LIMIT}, first a letter or digit")
    if not all(char.isalnum() or char in "-_" for char in text):
        raise refusal("is not a name", "use letters, digits, - and _ only")
    return text


def _model_name(text: str) -> str:
    """A model of `models`, or one that was written where it is used: that one is named by its place."""
    return text if "." in text else _name(text)


def _env_name(text: str) -> str:
    if not is_env_name(text):
        raise refusal("is not the name of an environment variable", "write NAME here and NAME=… in .env")
    return text


def _timezone(text: str) -> str:
    zone_of(text)
    return text


def zone_of(text: str) -> datetime.tzinfo:
    if text == "UTC":
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise refusal("is not a time zone known here", _suggest_zone(text)) from None


def _suggest_zone(text: str) -> str:
    known = zoneinfo.available_timezones()
    if not known:
        return "pip install tzdata, or use UTC"
    same_city = [zone for zone in known if zone.rpartition("/")[2].lower() == text.strip().lower()]
    near = min(same_city, default="") or find_nearest(text, (zone for zone in known if "/" in zone))
    return f"did you mean `{near}`?" if near else "write an area and a city, such as Europe/Berlin, or UTC"


def _store_kind(value: object) -> str:
    if value != "sqlite":
        raise refusal("must be `sqlite`, the only store so far", "write store: sqlite, or remove the key")
    return "sqlite"


def _write(value: object) -> str | int:
    if value in ("turn", "async", "session") and isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise refusal("must be `turn`, `async`, `session` or a number of turns", "write: turn")


def _identity(text: object) -> str:
    """`platform:id`, the way people are recognised: by what cannot be changed, never by a display name."""
    if isinstance(text, dict) and len(text) == 1:
        raise refusal("must be text, not a mapping", 'put it in quotes: "telegram:1001"')
    platform, _, id = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not platform or not id or platform.strip() != platform or id.strip() != id:
        raise refusal("must be platform:id", 'for example "telegram:1001"')
    return f"{platform}:{id}"


def _url(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme not in ("http", "https") or not rest or any(char.isspace() for char in text):
        raise refusal("must be a URL", "it starts with http:// or https://")
    return text


def freeze(value: Any) -> Any:
    """`value` with every mapping and list in it made read-only."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: freeze(item) for key, item in value.items()})
    return tuple(freeze(item) for item in value) if isinstance(value, list | tuple) else value


def thaw(value: Any) -> Any:
    """`value` as plain dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    return [thaw(item) for item in value] if isinstance(value, list | tuple) else value


def _frozen(value: Mapping[str, T]) -> Mapping[str, T]:
    return MappingProxyType(dict(value))


def nothing() -> Mapping[Any, Any]:
    """An empty mapping that stays empty."""
    return MappingProxyType({})


Table: TypeAlias = Annotated[Mapping[str, T], AfterValidator(_frozen)]
Named: TypeAlias = Annotated[Mapping[Annotated[str, AfterValidator(_name)], T], AfterValidator(_frozen)]
Models: TypeAlias = Annotated[Mapping[Annotated[str, AfterValidator(_model_name)], T], AfterValidator(_frozen)]
Name: TypeAlias = Annotated[str, AfterValidator(_name)]
ModelName: TypeAlias = Annotated[str, AfterValidator(_model_name)]
EnvName: TypeAlias = Annotated[str, AfterValidator(_env_name)]
Identity: TypeAlias = Annotated[str, BeforeValidator(_identity)]
Url: TypeAlias = Annotated[str, AfterValidator(_url)]
Text: TypeAlias = Annotated[str, Field(min_length=1)]
Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]
Usd: TypeAlias = Annotated[float, Field(ge=0)]
Effect: TypeAlias = Literal["pure", "keyed", "probe", "once"]
InDoubt: TypeAlias = Literal["resend", "hold"]
Whose: TypeAlias = Literal["per-person", "shared"]
StoreKind: TypeAlias = Annotated[Literal["sqlite"], BeforeValidator(_store_kind)]
Write: TypeAlias = Annotated[str | int, PlainValidator(_write)]
Zone: TypeAlias = Annotated[str, AfterValidator(_timezone)]
Free: TypeAlias = Annotated[Mapping[str, Any], AfterValidator(freeze)]
