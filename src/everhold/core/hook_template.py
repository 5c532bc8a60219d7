"""Renders the body of a webhook into a text, and decides whether it is about something that a hook wants. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

MAX_VALUE_CHARS: Final = 4_000
"""The limit of one value in a text."""
MAX_TEXT_CHARS: Final = 16_000
BODY_FIELD: Final = "body"
"""The name of the whole body in a template."""
HEADERS_FIELD: Final = "headers"
"""The name of the request's headers in a template, with their names in lower case."""
HIDDEN_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})

_FIELD: Final = re.compile(r"\{([\w@-]+(?:\.[\w@-]+)*)\}")


class HookDocument:
    """A delivery as templates see it: the JSON of its body, its headers, and the body as text."""

    def __init__(self, data: Any, *, headers: Mapping[str, str], body: str) -> None:
        self._data = data
        self._headers = headers
        self._body = body

    def find_value(self, path: str) -> Any:
        """Return the value at a path such as `commits.0.author.name`; None if there is none."""
        first, _, rest = path.partition(".")
        if first == HEADERS_FIELD and rest:
            return self._headers.get(rest.lower())
        found = self._data
        for key in path.split("."):
            if isinstance(found, Mapping):
                found = found.get(key)
            elif isinstance(found, Sequence) and not isinstance(found, str) and key.isascii() and key.isdigit():
                found = found[int(key)] if len(key) < 6 and int(key) < len(found) else None
            else:
                found = None
            if found is None:
                break
        if found is None and path == BODY_FIELD:
            return self._body
        return found


def render_template(template: str, document: HookDocument) -> str:
    """Return the template with each `{path}` replaced. What does not exist becomes empty, and braces around anything
    but a path stay.
    """

    def replace(match: re.Match[str]) -> str:
        return _shorten(format_value(document.find_value(match[1])), MAX_VALUE_CHARS)

    # A template that is only the body may have a longer one.
    if template.strip() == f"{{{BODY_FIELD}}}":
        return _shorten(format_value(document.find_value(BODY_FIELD)), MAX_TEXT_CHARS)
    return _shorten(_FIELD.sub(replace, template), MAX_TEXT_CHARS)


def is_wanted(document: HookDocument, when: Mapping[str, Sequence[str]]) -> bool:
    """Return whether every path of `when` has one of its values."""
    return all(format_value(document.find_value(path)) in values for path, values in when.items())


def format_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
