"""Converts the errors of model servers to everhold's, with the requested wait and a remedy.

Nothing here uses the network. No error text contains a key.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from msgspec import Struct

from everhold.errors import EverholdError, OperatorNeeded, Overloaded, Refused, TooLong
from everhold.infra.secret import MASK, SecretString

MAX_EXCERPT_CHARS: Final = 300
"""How many characters of the server's error text an error repeats."""
MAX_WAIT_SECONDS: Final = 31 * 86_400.0
"""Seconds. A longer wait is probably in another unit, so it counts as none."""
DAY_SECONDS: Final = 86_400.0

RETRYABLE_STATUSES: Final = frozenset({408, 409, 425, 429, 499})

_TOO_LONG_PHRASES: Final = (
    r"context[_ ]length[_ ]exceeded",
    r"model_context_window_exceeded",
    r"exceed_context_size_error",
    r"max_prompt_tokens_exceeded",
    r"string_above_max_length",
    r"request_too_large",
    r"maximum context length",
    r"maximum prompt length is",
    r"maximum model length",
    r"maximum input length",
    r"(?:exceeds?|exceeded|greater than|longer than) (?:the |model'?s? |its )*(?:max(?:imum)? )?context",
    r"exceed context (?:limit|window|length|size)",
    r"exceeds the available context",
    r"context (?:size|length|window) (?:has been |was )?exceeded",
    r"context (?:window|length) exceeds",
    r"context length (?:is only|of only|\d+ is greater)",
    r"context window (?:is )?full",
    r"reached context length",
    r"prompt (?:is )?too long",
    r"prompt exceeds (?:the )?(?:max|length)",
    r"prompt length \(?\d+\)? (?:is greater|exceeds)",
    r"input (?:is |token length )?too long",
    r"input token count.{0,40}(?:exceeds|only supports)",
    r"input tokens? exceeded",
    r"input tokens exceeds? ",
    r"token count of \d+ exceeds",
    r"too many (?:input )?tokens",
    r"token limit exceeded",
    r"exceeded (?:the )?model(?:'s)? token limit",
    r"exceeds (?:the )?token limit",
    r"tokens in request more than max tokens allowed",
    r"`inputs` (?:tokens \+ `max_new_tokens` )?must (?:be <=|have less than)",
    r"range of input length should be",
    r"reduce the length of (?:the )?(?:messages|input|prompt|either one)",
    r"too large for model with",
    r"request too large for",
    r"input or output tokens must be reduced",
    r"maximum number of tokens allowed",
    r"expected a string with maximum length",
)
_TOO_LONG: Final = re.compile("|".join(_TOO_LONG_PHRASES), re.IGNORECASE)
# rate limits mention tokens and shorter prompts too, but waiting helps against them
_RATE_LIMIT: Final = re.compile(
    r"rate[_ ]limit|per (?:minute|min|hour|day)|too many requests|please wait|throttl|quota|\b[TR]P[MD]\b",
    re.IGNORECASE,
)
_NEVER_FITS: Final = re.compile(r"request too large for|input or output tokens must be reduced", re.IGNORECASE)

_BILLING: Final = re.compile(
    r"insufficient[_ ](?:quota|credits?|balance|funds)|credit balance|exceeded your current quota|billing_|"
    r"spend[_ ]limit|payment required|out of credits|add (?:more )?credits",
    re.IGNORECASE,
)
_MODERATION: Final = re.compile(r"moderation|flagged|safety|content[_ ](?:filter|policy)|harmful", re.IGNORECASE)
_NO_CREDIT: Final = re.compile(
    r"insufficient[_ ](?:quota|credits?|balance|funds)|credit balance|payment required|out of credits", re.IGNORECASE
)
_KEY_PATTERN: Final = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|key|AIza|hf|r8|nvapi|pplx|csk|fw|tgp)[-_][\w*.\-]{6,}|\bAIza[\w*\-]{6,}|"
    r"(?<=Bearer )\S{6,}|(?<![A-Za-z0-9])[A-Za-z0-9]{2,}\*{3,}[A-Za-z0-9]*"
)
_HTML_TAGS: Final = re.compile(r"<(?:script|style)\b.*?(?:</(?:script|style)>|\Z)|<[^<>]*>", re.IGNORECASE | re.DOTALL)
_RETRY_PHRASE: Final = re.compile(
    r"(?:try again|retry|available again) in (?:about )?"
    r"((?:\d+(?:\.\d+)?\s*(?:ms|[dhms]|seconds?|minutes?|hours?)\b\s*|\d+(?:\.\d+)?[hm](?=\d))+)",
    re.IGNORECASE,
)
_DURATION: Final = re.compile(
    r"(?<!\d)(\d+(?:\.\d+)?)\s*(ms|milliseconds?|d(?:ays?)?|h(?:ours?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)"
)
_UNIT_SECONDS: Final = {"d": DAY_SECONDS, "h": 3600.0, "m": 60.0, "s": 1.0}

_REMEDIES: Final = {
    400: "read the server's message; the model's `params` are the usual cause",
    401: "put a valid key into .env under the name in `api_key_env`",
    403: "use a key that may use this model, or choose another model",
    404: "check `name` and `base_url`: the model or the path does not exist there",
    405: "check `base_url`: this path does not accept these requests",
    422: "read the server's message; the model's `params` are the usual cause",
}
_RETRYABLE_TYPES: Final = frozenset(
    {
        "overloaded_error", "api_error", "rate_limit_error", "timeout_error", "server_error", "internal_error",
        "internal_server_error", "service_unavailable", "engine_overloaded", "rate_limit_exceeded", "overloaded",
        "unavailable_error", "insufficient_quota", "billing_error",
    }
)  # fmt: skip
_REFUSED_TYPES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
}


class ModelEndpoint(Struct, frozen=True, kw_only=True):
    """The model and host that an error names, and the secrets that must not be in its text."""

    model: str
    host: str
    secrets: tuple[SecretString, ...] = ()

    def __str__(self) -> str:
        return f"{self.model} at {self.host}"

    def redact_text(self, text: str) -> str:
        """Return `text` on one line, shortened, without anything that is or looks like a key."""
        for secret in self.secrets:
            text = secret.mask_in(text)
        text = " ".join(_KEY_PATTERN.sub(MASK, text).split())
        text = "".join(character for character in text if character.isprintable())
        return text if len(text) <= MAX_EXCERPT_CHARS else text[: MAX_EXCERPT_CHARS - 1] + "…"


class ModelErrorDetails(Struct, frozen=True, kw_only=True):
    """The server's error text, in any format."""

    message: str = ""
    kind: str = ""
    """Its type and code, as the server writes them."""
    status: int = 0
    """The status in the body, for servers that have already sent a 200."""
    wait_seconds: float | None = None
    full_text: str = ""
    """The whole text, to search for phrases."""


def build_http_error(
    endpoint: ModelEndpoint, *, status: int, headers: Mapping[str, str], body: bytes, now: float
) -> EverholdError:
    """Return the error for a refused request."""
    return _classify_error(endpoint, parse_error_body(body), status=status, headers=headers, now=now)


def build_body_error(endpoint: ModelEndpoint, body: Mapping[str, Any], *, now: float) -> EverholdError:
    """Return the error for an `error` object inside a 200 answer or a stream."""
    said = _parse_error_value(body)
    status = said.status
    if not status:
        words = said.kind.lower().split()
        if any(word in _RETRYABLE_TYPES for word in words):
            status = 503
        else:
            status = next((_REFUSED_TYPES[word] for word in words if word in _REFUSED_TYPES), 503)
    return _classify_error(endpoint, said, status=status, headers={}, now=now)


def is_too_long_message(text: str) -> bool:
    """Return whether the text says that the request is too long, so that a shorter one may succeed."""
    if _NEVER_FITS.search(text):
        return True
    return _TOO_LONG.search(text) is not None and _RATE_LIMIT.search(text) is None


def build_unreachable_error(endpoint: ModelEndpoint, why: str) -> Overloaded:
    return Overloaded(
        f"{endpoint} cannot be reached: {endpoint.redact_text(why)}",
        remedy="check that it runs and that `base_url` is right",
    )


def build_timeout_error(endpoint: ModelEndpoint, *, phase: str, seconds: float) -> Overloaded:
    return Overloaded(
        f"{endpoint}: no {phase} within {seconds:g} s",
        remedy="if this model is just slow, raise its `deadline_seconds`",
    )


def build_dropped_error(endpoint: ModelEndpoint, why: str = "the answer broke off before its end") -> Overloaded:
    return Overloaded(f"{endpoint}: {endpoint.redact_text(why)}")


def build_garbled_error(endpoint: ModelEndpoint, what: str) -> Overloaded:
    return Overloaded(
        f"{endpoint} answered with {endpoint.redact_text(what)}", remedy="check that `base_url` is a model's API"
    )


# -- error texts -------------------------------------------------------------------------------------------------------


def parse_error_body(body: bytes) -> ModelErrorDetails:
    """Parse the body of a refusal: JSON of any vendor's format, an HTML page, or plain text."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace")
        if "<" in text:
            text = _HTML_TAGS.sub(" ", text)
        return ModelErrorDetails(message=text.strip(), full_text=text)
    return _parse_error_value(parsed)


def _parse_error_value(parsed: Any) -> ModelErrorDetails:
    everything = json.dumps(parsed, ensure_ascii=False).replace('\\"', '"').replace("\\\\", "\\")
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    if isinstance(parsed, str):
        return ModelErrorDetails(message=parsed, full_text=parsed)
    if not isinstance(parsed, dict):
        return ModelErrorDetails(full_text=everything)
    inner = parsed.get("error")
    if inner is None:
        inner = parsed.get("detail", parsed.get("errors", parsed))
    if isinstance(inner, list):
        inner = inner[0] if inner else {}
    if isinstance(inner, str):
        return ModelErrorDetails(message=inner, kind=_as_text(parsed.get("error_type")), full_text=everything)
    if not isinstance(inner, dict):
        return ModelErrorDetails(full_text=everything)
    message = next((inner[k] for k in ("message", "msg", "error", "title") if isinstance(inner.get(k), str)), "")
    code = inner.get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else 0
    if isinstance(code, str) and code.isdigit() and 400 <= int(code) <= 599:
        status = int(code)
    kind = " ".join(filter(None, (_as_text(inner.get("type")), _as_text(code), _as_text(inner.get("status")))))
    return ModelErrorDetails(
        message=message, kind=kind, status=status, wait_seconds=_find_wait_seconds(inner), full_text=everything
    )


def _find_wait_seconds(inner: Mapping[str, Any]) -> float | None:
    details = inner.get("details")
    if isinstance(details, list):
        for detail in details:
            if isinstance(detail, dict) and isinstance(detail.get("retryDelay"), str):
                return parse_duration(detail["retryDelay"])
    message = inner.get("message")
    if isinstance(message, str) and (again := _RETRY_PHRASE.search(message)):
        return parse_duration(again[1])
    return None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


# -- classification ----------------------------------------------------------------------------------------------------


def _classify_error(
    endpoint: ModelEndpoint, said: ModelErrorDetails, *, status: int, headers: Mapping[str, str], now: float
) -> EverholdError:
    words = endpoint.redact_text(said.message) or f"HTTP {status}"
    # a limit per minute means waiting, unless one request alone exceeds it
    fits = _NEVER_FITS.search(said.full_text) is None if status == 429 else not is_too_long_message(said.full_text)
    if status == 413 or (status not in (401, 403, 404) and not fits):
        return TooLong(f"{endpoint}: the request is too long for it: {words}")
    wait = parse_retry_after(headers, status=status, now=now)
    if wait is None:
        wait = said.wait_seconds
    if status == 402 or (status in (400, 403, 429) and _BILLING.search(said.full_text)):
        # A quota per minute or day passes by itself; a credit that is used up does not.
        is_used_up = status in (402, 403) or _NO_CREDIT.search(said.full_text) is not None
        return (OperatorNeeded if is_used_up else Overloaded)(
            f"{endpoint} requires payment: {words}",
            retry_after=wait,
            remedy="add credit at the provider, or raise its limit",
        )
    if status in RETRYABLE_STATUSES or status >= 500:
        return Overloaded(f"{endpoint} cannot answer now (HTTP {status}): {words}", retry_after=wait)
    if 300 <= status < 400:
        return Refused(f"{endpoint} redirects elsewhere (HTTP {status})", remedy="set `base_url` to the new address")
    # A moderated text is refused with 403, too, and no operator can change that.
    is_misconfigured = status in (401, 404) or (status == 403 and _MODERATION.search(said.full_text) is None)
    return (OperatorNeeded if is_misconfigured else Refused)(
        f"{endpoint} refused the request (HTTP {status}): {words}", remedy=_suggest_remedy(endpoint, said, status)
    )


def _suggest_remedy(endpoint: ModelEndpoint, said: ModelErrorDetails, status: int) -> str:
    text = said.full_text
    if "stream_options" in text:
        return "set `stream_usage: false` for this model: it does not know that option"
    if "max_completion_tokens" in text and status == 400:
        return "set `limit_key: max_completion_tokens` for this model"
    if status == 404 and "try pulling" in text:
        return f"run: ollama pull {endpoint.model}"
    return _REMEDIES.get(status, _REMEDIES[400])


# -- waits -------------------------------------------------------------------------------------------------------------


def parse_retry_after(headers: Mapping[str, str], *, status: int, now: float) -> float | None:
    """Return the wait in seconds that the headers ask for, or None. `now` is used only if there is no `Date` header."""
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if (milliseconds := _parse_number(lower.get(name, ""))) is not None:
            return _reject_excessive_wait(milliseconds / 1000)
    there = _get_server_time(lower, now)
    if "retry-after" in lower:
        value = lower["retry-after"]
        seconds = _parse_number(value)
        if seconds is None:
            seconds = _parse_date(value, there)
        if seconds is None:
            seconds = parse_duration(value)
        if (sane := _reject_excessive_wait(seconds)) is not None:
            return sane
    if (seconds := _reject_excessive_wait(_parse_number(lower.get("x-ratelimit-reset-after", "")))) is not None:
        return seconds
    return _parse_rate_limit_reset(lower, there) if status == 429 else None


def _parse_rate_limit_reset(lower: Mapping[str, str], there: float) -> float | None:
    """Return when the exhausted limits reset, or, if no limit is exhausted, when all do."""
    empty: list[float] = []
    every: list[float] = []
    for name, value in lower.items():
        if "ratelimit" not in name or "reset" not in name:
            continue
        seconds = _reject_excessive_wait(_parse_moment(value, there))
        if seconds is None or seconds > DAY_SECONDS:
            continue
        every.append(seconds)
        remaining = _parse_number(lower.get(name.replace("reset", "remaining"), ""))
        if remaining is not None and remaining <= 0:
            empty.append(seconds)
    return max(empty or every, default=None)


def _parse_moment(value: str, there: float) -> float | None:
    """Return the seconds until a time that is given in seconds, as a duration, as an epoch (seconds or milliseconds) or
    as a date."""
    number = _parse_number(value)
    if number is not None:
        if number > 1e11:
            return max(0.0, number / 1000 - there)
        return max(0.0, number - there) if number > 1e9 else number
    seconds = parse_duration(value)
    return seconds if seconds is not None else _parse_date(value, there)


def parse_duration(text: str) -> float | None:
    """Return the seconds of `6m0s`, `120ms`, `1h2m3.5s`, `20 seconds`; None for anything else."""
    text = text.strip().lower()
    total, at = 0.0, 0
    for part in _DURATION.finditer(text):
        if text[at : part.start()].strip():
            return None
        total += float(part[1]) * (0.001 if part[2].startswith(("ms", "milli")) else _UNIT_SECONDS[part[2][0]])
        at = part.end()
    return total if at and not text[at:].strip() else None


def _get_server_time(lower: Mapping[str, str], now: float) -> float:
    """Return the server's time if it is known, because our clock may be wrong."""
    try:
        return parsedate_to_datetime(lower["date"]).timestamp()
    except (KeyError, ValueError, IndexError, OverflowError):
        return now


def _parse_date(value: str, there: float) -> float | None:
    moment: datetime | None = None
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        parse: Callable[[str], datetime] = read
        try:
            moment = parse(value)
            break
        except (ValueError, IndexError, OverflowError):
            continue
    if moment is None:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return max(0.0, moment.timestamp() - there)
    except (OverflowError, ValueError):
        return None


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _reject_excessive_wait(seconds: float | None) -> float | None:
    return seconds if seconds is not None and 0 <= seconds <= MAX_WAIT_SECONDS else None
