"""The types of configuration values: names, URLs, identities, and frozen sections."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import zoneinfo
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from everhold.config.errors import find_nearest
from everhold.config.literals import has_url_password, is_env_name

T = TypeVar("T")

MAX_NAME_CHARS: Final = 64


class ConfigSection(BaseModel):
    """Base of every section. Frozen; refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


def build_value_error(message: str, remedy: str = "") -> PydanticCustomError:
    """Return the error that a validator raises. Neither the message nor the remedy contains the value."""
    return PydanticCustomError("refused", "{text}", {"text": message, "remedy": remedy})


def _validate_name(text: str) -> str:
    if not (0 < len(text) <= MAX_NAME_CHARS and text[0].isalnum() and text.isascii()):
        raise build_value_error(
            "is not a name", f"letters, digits, - and _, at most {MAX_NAME_CHARS}, first a letter or digit"
        )
    if not all(char.isalnum() or char in "-_" for char in text):
        raise build_value_error("is not a name", "use letters, digits, - and _ only")
    return text


def _validate_model_name(text: str) -> str:
    """Validate the name of a model. An inline model is named by its key path, which contains a dot."""
    return text if "." in text else _validate_name(text)


def _validate_env_name(text: str) -> str:
    if not is_env_name(text):
        raise build_value_error("is not the name of an environment variable", "write NAME here and NAME=… in .env")
    return text


def _validate_timezone(text: str) -> str:
    parse_timezone(text)
    return text


_BROKEN_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


def parse_timezone(text: str) -> datetime.tzinfo:
    if text == "UTC":
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise build_value_error("is not a time zone known here", _suggest_zone(text)) from None


def _suggest_zone(text: str) -> str:
    known = zoneinfo.available_timezones()
    if not known:
        return "pip install tzdata, or use UTC"
    same_city = [zone for zone in known if zone.rpartition("/")[2].lower() == text.strip().lower()]
    near = min(same_city, default="") or find_nearest(text, (zone for zone in known if "/" in zone))
    return f"did you mean `{near}`?" if near else "write an area and a city, such as Europe/Berlin, or UTC"


def _validate_store_url(text: str) -> str:
    if text and not is_postgres_url(text):
        raise build_value_error(
            "is not the address of a PostgreSQL database", "for example postgresql://everhold@db.example/everhold"
        )
    if has_url_password(text) or "password=" in unquote(text):
        raise build_value_error("holds a password", "take it out of the URL, and name its variable in password_env")
    if problem := find_url_problem(text):
        raise build_value_error(problem, "write % as %25, / as %2F and @ as %40")
    return text


def is_postgres_url(text: str) -> bool:
    """Whether this can be the address of a PostgreSQL database. Several hosts are separated by commas."""
    scheme, found, rest = text.partition("://")
    path = rest.partition("?")[0].partition("/")[2]
    return scheme in ("postgresql", "postgres") and bool(found) and bool(path) and not any(map(str.isspace, text))


def find_url_problem(url: str) -> str:
    """Return why the address of a database would be read otherwise than it was meant; empty if it is clear.

    With `/` or `@` in a password the driver takes a part of it for the server's or the database's name, and shows it.
    """
    _, _, rest = url.partition("://")
    place, _, database = rest.partition("?")[0].partition("/")
    if "@" in database or place.count("@") > 1:
        return "contains `/` or `@` in the user or the password"
    if _BROKEN_PERCENT.search(url):
        return "contains a % that is not followed by two hexadecimal digits"
    return ""


def insert_password(url: str, password: str) -> str:
    """Return the address of a database with a password for its user."""
    scheme, _, rest = url.partition("://")
    place, slash, database = rest.partition("/")
    user, at, hosts = place.rpartition("@")
    return f"{scheme}://{user}:{quote(password, safe='')}{at or '@'}{hosts}{slash}{database}" if password else url


def _validate_write(value: object) -> str | int:
    if value in ("turn", "async", "session") and isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise build_value_error("must be `turn`, `async`, `session` or a number of turns", "write: turn")


def _validate_identity(text: object) -> str:
    """Validate `platform:id`. The id must be one that cannot be changed, so not a display name."""
    if isinstance(text, dict) and len(text) == 1:
        raise build_value_error("must be text, not a mapping", 'put it in quotes: "telegram:1001"')
    platform, _, id = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not platform or not id or platform.strip() != platform or id.strip() != id:
        raise build_value_error("must be platform:id", 'for example "telegram:1001"')
    return f"{platform}:{id}"


def _validate_url(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme not in ("http", "https") or not rest or any(char.isspace() for char in text):
        raise build_value_error("must be a URL", "it starts with http:// or https://")
    return text


def freeze_value(value: Any) -> Any:
    """Return `value` with all mappings and lists read-only."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: freeze_value(item) for key, item in value.items()})
    return tuple(freeze_value(item) for item in value) if isinstance(value, list | tuple) else value


def thaw_value(value: Any) -> Any:
    """Return `value` as plain dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thaw_value(item) for key, item in value.items()}
    return [thaw_value(item) for item in value] if isinstance(value, list | tuple) else value


def _validate_absolute_path(value: str) -> str:
    path = os.path.expanduser(value)
    if not os.path.isabs(path) or "\0" in path:
        raise build_value_error("is not an absolute path", "for example /srv/notes or ~/notes")
    return path


def _freeze_mapping(value: Mapping[str, T]) -> Mapping[str, T]:
    return MappingProxyType(dict(value))


def make_empty_mapping() -> Mapping[Any, Any]:
    """Return an empty read-only mapping."""
    return MappingProxyType({})


def _validate_network(value: str) -> str:
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise build_value_error("is not an address or a network", "for example 127.0.0.1 or 10.0.0.0/8") from None
    if not network.prefixlen:
        raise build_value_error("trusts every address", "write the addresses of your own proxies")
    return value


FrozenTable: TypeAlias = Annotated[Mapping[str, T], AfterValidator(_freeze_mapping)]
NamedTable: TypeAlias = Annotated[
    Mapping[Annotated[str, AfterValidator(_validate_name)], T], AfterValidator(_freeze_mapping)
]
ModelTable: TypeAlias = Annotated[
    Mapping[Annotated[str, AfterValidator(_validate_model_name)], T], AfterValidator(_freeze_mapping)
]
Name: TypeAlias = Annotated[str, AfterValidator(_validate_name)]
ModelName: TypeAlias = Annotated[str, AfterValidator(_validate_model_name)]
EnvName: TypeAlias = Annotated[str, AfterValidator(_validate_env_name)]
IdentityText: TypeAlias = Annotated[str, BeforeValidator(_validate_identity)]
Url: TypeAlias = Annotated[str, AfterValidator(_validate_url)]
Text: TypeAlias = Annotated[str, Field(min_length=1)]
Fraction: TypeAlias = Annotated[float, Field(gt=0, le=1)]
Usd: TypeAlias = Annotated[float, Field(ge=0)]
AbsolutePath: TypeAlias = Annotated[str, AfterValidator(_validate_absolute_path)]
SandboxName: TypeAlias = Literal["auto", "bubblewrap", "landlock", "none"]
EffectName: TypeAlias = Literal["pure", "keyed", "probe", "once"]
NetworkText: TypeAlias = Annotated[str, AfterValidator(_validate_network)]
PolicyAction: TypeAlias = Literal["allow", "ask", "deny"]
PolicyPlace: TypeAlias = Literal["dm", "group", "cli", "api"]
PolicyOriginName: TypeAlias = Literal["chat", "schedule", "background", "agent", "webhook", "delegate"]
SearchProviderName: TypeAlias = Literal["searxng", "brave", "tavily"]
HookSchemeName: TypeAlias = Literal["hmac", "secret", "github", "gitlab", "slack", "stripe", "standard"]
RoleName: TypeAlias = Literal["stranger", "known", "member", "owner"]
TokenRole: TypeAlias = Literal["operator", "member", "service", "metrics"]
InDoubtPolicy: TypeAlias = Literal["resend", "hold"]
SessionSharing: TypeAlias = Literal["per-person", "shared"]
StoreUrl: TypeAlias = Annotated[str, AfterValidator(_validate_store_url)]
WritePolicy: TypeAlias = Annotated[str | int, PlainValidator(_validate_write)]
TimezoneName: TypeAlias = Annotated[str, AfterValidator(_validate_timezone)]
FreeMapping: TypeAlias = Annotated[Mapping[str, Any], AfterValidator(freeze_value)]
