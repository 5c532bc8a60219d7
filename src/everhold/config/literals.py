"""Recognize secrets where they must not be: in config.yaml, in a key, in an error text. Stores none."""

from __future__ import annotations

import re
from typing import Any, Final

_SECRET_KEY_PATTERN: Final = re.compile(
    r"(?:.*_)?(?:token|api_?key|password|passwd|passphrase|secret|credentials?|(?:access|secret|private|signing)_?key)"
)
_SECRET_SHAPE_PATTERN: Final = re.compile(
    r"""
      \bsk-[A-Za-z0-9_-]{16,}                             # OpenAI, Anthropic and compatible services
    | \bxox[a-z]-[A-Za-z0-9-]{10,} | \bxapp-[A-Za-z0-9-]{10,}   # Slack
    | \b\d{6,12}:[A-Za-z0-9_-]{30,}                       # Telegram
    | \b[A-Za-z0-9_-]{23,30}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,}   # Discord
    | \bsyt_[A-Za-z0-9_]{16,} | \bmat_[A-Za-z0-9]{16,}    # Matrix
    | \bgh[opsur]_[A-Za-z0-9]{20,} | \bgithub_pat_[A-Za-z0-9_]{20,} | \bglpat-[A-Za-z0-9_-]{16,}
    | \bhf_[A-Za-z0-9]{20,} | \bgsk_[A-Za-z0-9]{20,} | \bAIza[A-Za-z0-9_-]{30,} | \bAKIA[A-Z0-9]{16}\b
    | (?<![A-Za-z0-9_-])(?:(?!\beyJ)[A-Za-z0-9_-])*+eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+\.  # JSON web tokens
    | -----BEGIN[ A-Z]*PRIVATE\ KEY-----
    | \b[Bb]earer\ +[A-Za-z0-9._~+/-]{16,}
    """,
    re.VERBOSE,
)
_URL_PASSWORD: Final = re.compile(r"[a-z0-9+.-]://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ENV_REFERENCE: Final = re.compile(r"(?:\$\{?|env:)([A-Za-z_][A-Za-z0-9_]*)\}?|([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)")
_WORD_BREAK: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_secret_key(key: str) -> bool:
    """Whether a key of this name holds a secret, regardless of its value."""
    return _SECRET_KEY_PATTERN.fullmatch(_WORD_BREAK.sub("_", key).replace("-", "_").lower()) is not None


def is_secret_like(text: str) -> bool:
    """Whether this text has the shape of a known token, or a URL with a password."""
    return _SECRET_SHAPE_PATTERN.search(text) is not None or has_url_password(text)


def has_url_password(text: str) -> bool:
    return _URL_PASSWORD.search(text) is not None


def is_env_name(text: Any) -> bool:
    """Whether this can be the name of an environment variable and does not look like a secret."""
    return isinstance(text, str) and _ENV_NAME.fullmatch(text) is not None and not is_secret_like(text)


def parse_env_reference(text: str) -> str | None:
    """Return NAME of `$NAME`, `${NAME}`, `env:NAME` or NAME, written where a secret is expected."""
    found = None if is_secret_like(text) else _ENV_REFERENCE.fullmatch(text)
    return (found[1] or found[2]) if found else None


def suggest_env_name(path: tuple[str | int, ...]) -> str:
    """Suggest a variable for the secret at `path`: TELEGRAM_CODER_TOKEN for platforms.telegram.coder.token."""
    if path[:2] == ("http", "tokens"):
        return "EVERHOLD_TOKEN"
    words = [_WORD_BREAK.sub("_", str(part)) for part in (path[1:] or path) if not is_secret_like(str(part))]
    name = re.sub(r"[^A-Za-z0-9]+", "_", "_".join(words)).strip("_").upper()
    return name if name and not name[0].isdigit() else f"EVERHOLD_{name or 'SECRET'}"


def mask_secrets(text: str) -> str:
    """Return `text` with everything masked that looks like a secret."""
    return _URL_PASSWORD.sub("***@", _SECRET_SHAPE_PATTERN.sub("***", text))
