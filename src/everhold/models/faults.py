"""What a model server says when it will not answer -> our errors, with the wait it asked for and a remedy.

Nothing here touches the network, and no text leaves here with a key in it.
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

from everhold.errors import EverholdError, Overloaded, Refused, TooLong
from everhold.secret import MASK, Secret

EXCERPT: Final = 300
"""Characters of the other side's words that an error repeats."""
SANE_WAIT: Final = 31 * 86_400.0
"""Seconds. A longer wait is a unit mistaken or a joke, and counts as none given."""
DAY: Final = 86_400.0

LATER: Final = frozenset({408, 409, 425, 429, 499})

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
# limits per minute or day speak of tokens and of shorter prompts too, and pass by waiting
_RATE: Final = re.compile(
    r"rate[_ ]limit|per (?:minute|min|hour|day)|too many requests|please wait|throttl|quota|\b[TR]P[MD]\b",
    re.IGNORECASE,
)
_NEVER_FITS: Final = re.compile(r"request too large for|input or output tokens must be reduced", re.IGNORECASE)

_BILLING: Final = re.compile(
    r"insufficient[_ ](?:quota|credits?|balance|funds)|credit balance|exceeded your current quota|billing_|"
    r"spend[_ ]limit|payment required|out of credits|add (?:more )?credits",
    re.IGNORECASE,
)
_KEYLIKE: Final = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|key|AIza|hf|r8|nvapi|pplx|csk|fw|tgp)[-_][\w*.\-]{6,}|\bAIza[\w*\-]{6,}|"
    r"(?<=Bearer )\S{6,}|[A-Za-z0-9]{2,}\*{3,}[A-Za-z0-9]*"
)
_TAGS: Final = re.compile(r"<(?:script|style)\b.*?</(?:script|style)>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_AGAIN: Final = re.compile(
    r"(?:try again|retry|available again) in (?:about )?"
    r"((?:\d+(?:\.\d+)?\s*(?:ms|[dhms]|seconds?|minutes?|hours?)\b\s*|\d+(?:\.\d+)?[hm](?=\d))+)",
    re.IGNORECASE,
)
_SPAN: Final = re.compile(
    r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|d(?:ays?)?|h(?:ours?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)"
)
_UNITS: Final = {"d": DAY, "h": 3600.0, "m": 60.0, "s": 1.0}

_REMEDY: Final = {
    400: "read the server's words; the model's `params` are the usual cause",
    401: "put a valid key into .env under the name in `api_key_env`",
    403: "use a key that may use this model, or choose another model",
    404: "check `name` and `base_url`: the model or the path does not exist there",
    405: "check `base_url`: this path takes no requests of ours",
    422: "read the server's words; the model's `params` are the usual cause",
}
_LATER_TYPES: Final = frozenset(
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


class Whom(Struct, frozen=True, kw_only=True):
    """Whom an error is about: named so that a reader knows where to look, and what must not be in the text."""

    model: str
    host: str
    secrets: tuple[Secret, ...] = ()

    def __str__(self) -> str:
        return f"{self.model} at {self.host}"

    def clean(self, text: str) -> str:
        """`text` on one line, short, and without anything that is or looks like a key."""
        for secret in self.secrets:
            text = secret.hide(text)
        text = " ".join(_KEYLIKE.sub(MASK, text).split())
        text = "".join(character for character in text if character.isprintable())
        return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"


class Complaint(Struct, frozen=True, kw_only=True):
    """The other side's words, whatever shape they came in."""

    message: str = ""
    kind: str = ""
    """Its type and code, as it spells them."""
    status: int = 0
    """The status the body speaks of; servers that have begun a 200 can only say it there."""
    wait: float | None = None
    everything: str = ""
    """All of it, to look for phrases in."""


def fault(whom: Whom, *, status: int, headers: Mapping[str, str], body: bytes, now: float) -> EverholdError:
    """The error a refused request becomes."""
    return _judge(whom, complaint(body), status=status, headers=headers, now=now)


def fault_within(whom: Whom, body: Mapping[str, Any], *, now: float) -> EverholdError:
    """The error that an `error` object inside a 200 answer or a stream becomes."""
    said = _complaint_of(body)
    status = said.status
    if not status:
        words = said.kind.lower().split()
        if any(word in _LATER_TYPES for word in words):
            status = 503
        else:
            status = next((_REFUSED_TYPES[word] for word in words if word in _REFUSED_TYPES), 503)
    return _judge(whom, said, status=status, headers={}, now=now)


def too_long(text: str) -> bool:
    """Whether these words mean that the request does not fit and a shorter one may."""
    if _NEVER_FITS.search(text):
        return True
    return _TOO_LONG.search(text) is not None and _RATE.search(text) is None


def unreachable(whom: Whom, why: str) -> Overloaded:
    return Overloaded(
        f"{whom} cannot be reached: {whom.clean(why)}", remedy="check that it runs and that `base_url` is right"
    )


def late(whom: Whom, *, phase: str, seconds: float) -> Overloaded:
    return Overloaded(
        f"{whom}: no {phase} within {seconds:g} s", remedy="if this model is just slow, raise its `deadline_seconds`"
    )


def dropped(whom: Whom, why: str = "the answer broke off before its end") -> Overloaded:
    return Overloaded(f"{whom}: {whom.clean(why)}")


def garbled(whom: Whom, what: str) -> Overloaded:
    return Overloaded(f"{whom} answered with {whom.clean(what)}", remedy="check that `base_url` is a model's API")


# -- words -------------------------------------------------------------------------------------------------------------


def complaint(body: bytes) -> Complaint:
    """What a refusal's body says: JSON of any vendor's shape, a page of HTML, or plain words."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace")
        if "<" in text:
            text = _TAGS.sub(" ", text)
        return Complaint(message=text.strip(), everything=text)
    return _complaint_of(parsed)


def _complaint_of(parsed: Any) -> Complaint:
    everything = json.dumps(parsed, ensure_ascii=False).replace('\\"', '"').replace("\\\\", "\\")
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    if isinstance(parsed, str):
        return Complaint(message=parsed, everything=parsed)
    if not isinstance(parsed, dict):
        return Complaint(everything=everything)
    inner = parsed.get("error")
    if inner is None:
        inner = parsed.get("detail", parsed.get("errors", parsed))
    if isinstance(inner, list):
        inner = inner[0] if inner else {}
    if isinstance(inner, str):
        return Complaint(message=inner, kind=_text(parsed.get("error_type")), everything=everything)
    if not isinstance(inner, dict):
        return Complaint(everything=everything)
    message = next((inner[k] for k in ("message", "msg", "error", "title") if isinstance(inner.get(k), str)), "")
    code = inner.get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else 0
    if isinstance(code, str) and code.isdigit() and 400 <= int(code) <= 599:
        status = int(code)
    kind = " ".join(filter(None, (_text(inner.get("type")), _text(code), _text(inner.get("status")))))
    return Complaint(message=message, kind=kind, status=status, wait=_told_wait(inner), everything=everything)


def _told_wait(inner: Mapping[str, Any]) -> float | None:
    details = inner.get("details")
    if isinstance(details, list):
        for detail in details:
            if isinstance(detail, dict) and isinstance(detail.get("retryDelay"), str):
                return span(detail["retryDelay"])
    message = inner.get("message")
    if isinstance(message, str) and (again := _AGAIN.search(message)):
        return span(again[1])
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


# -- judgement ---------------------------------------------------------------------------------------------------------


def _judge(whom: Whom, said: Complaint, *, status: int, headers: Mapping[str, str], now: float) -> EverholdError:
    words = whom.clean(said.message) or f"HTTP {status}"
    # a limit per minute is a wait, unless one request alone breaks it
    fits = _NEVER_FITS.search(said.everything) is None if status == 429 else not too_long(said.everything)
    if status == 413 or (status not in (401, 403, 404) and not fits):
        return TooLong(f"{whom}: the request is too long for it: {words}")
    wait = retry_after(headers, status=status, now=now)
    if wait is None:
        wait = said.wait
    if status == 402 or (status in (400, 403, 429) and _BILLING.search(said.everything)):
        return Overloaded(
            f"{whom} wants to be paid: {words}",
            retry_after=wait,
            remedy="add credit at the provider, or raise its limit",
        )
    if status in LATER or status >= 500:
        return Overloaded(f"{whom} cannot answer now (HTTP {status}): {words}", retry_after=wait)
    if 300 <= status < 400:
        return Refused(f"{whom} redirects elsewhere (HTTP {status})", remedy="set `base_url` to where it really is")
    return Refused(f"{whom} refused the request (HTTP {status}): {words}", remedy=_remedy(whom, said, status))


def _remedy(whom: Whom, said: Complaint, status: int) -> str:
    text = said.everything
    if "stream_options" in text:
        return "set `stream_usage: false` for this model: it does not know that option"
    if "max_completion_tokens" in text and status == 400:
        return "set `limit_key: max_completion_tokens` for this model"
    if status == 404 and "try pulling" in text:
        return f"run: ollama pull {whom.model}"
    return _REMEDY.get(status, _REMEDY[400])


# -- waits -------------------------------------------------------------------------------------------------------------


def retry_after(headers: Mapping[str, str], *, status: int, now: float) -> float | None:
    """Seconds to wait, as the headers ask; None if they do not. `now` is only needed where no `Date` came along."""
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if (milliseconds := _number(lower.get(name, ""))) is not None:
            return _sane(milliseconds / 1000)
    there = _their_now(lower, now)
    if "retry-after" in lower:
        value = lower["retry-after"]
        seconds = _number(value)
        if seconds is None:
            seconds = _date(value, there)
        if seconds is None:
            seconds = span(value)
        if (sane := _sane(seconds)) is not None:
            return sane
    if (seconds := _sane(_number(lower.get("x-ratelimit-reset-after", "")))) is not None:
        return seconds
    return _reset(lower, there) if status == 429 else None


def _reset(lower: Mapping[str, str], there: float) -> float | None:
    """When the limits that stand at zero are over; where none says so, when all are."""
    empty: list[float] = []
    every: list[float] = []
    for name, value in lower.items():
        if "ratelimit" not in name or "reset" not in name:
            continue
        seconds = _sane(_moment(value, there))
        if seconds is None or seconds > DAY:
            continue
        every.append(seconds)
        remaining = _number(lower.get(name.replace("reset", "remaining"), ""))
        if remaining is not None and remaining <= 0:
            empty.append(seconds)
    return max(empty or every, default=None)


def _moment(value: str, there: float) -> float | None:
    """Seconds until a moment written as seconds, as a span, as an epoch (in seconds or thousandths) or as a date."""
    number = _number(value)
    if number is not None:
        if number > 1e11:
            return max(0.0, number / 1000 - there)
        return max(0.0, number - there) if number > 1e9 else number
    seconds = span(value)
    return seconds if seconds is not None else _date(value, there)


def span(text: str) -> float | None:
    """Seconds of `6m0s`, `120ms`, `1h2m3.5s`, `20 seconds`; None for anything else."""
    text = text.strip().lower()
    total, at = 0.0, 0
    for part in _SPAN.finditer(text):
        if text[at : part.start()].strip():
            return None
        total += float(part[1]) * (0.001 if part[2].startswith(("ms", "milli")) else _UNITS[part[2][0]])
        at = part.end()
    return total if at and not text[at:].strip() else None


def _their_now(lower: Mapping[str, str], now: float) -> float:
    """Their clock where they told it, so that ours may be wrong."""
    try:
        return parsedate_to_datetime(lower["date"]).timestamp()
    except (KeyError, ValueError, IndexError, OverflowError):
        return now


def _date(value: str, there: float) -> float | None:
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


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _sane(seconds: float | None) -> float | None:
    return seconds if seconds is not None and 0 <= seconds <= SANE_WAIT else None
