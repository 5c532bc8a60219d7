"""Converts between Markdown and Slack's mrkdwn. It changes as little as possible and leaves code unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_CODE: Final = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]+`)", re.DOTALL)
_BOLD: Final = re.compile(r"\*\*(?=\S)([^*\n]+?)(?<=\S)\*\*")
_HEADING: Final = re.compile(r"^#{1,6}[ \t]+([^\n]+)$", re.MULTILINE)
_LINK: Final = re.compile(r"(?<!!)\[([^\[\]\n]+)\]\((https?://[^\s()<>|]+)\)")
_TAGGED: Final = re.compile(r"<([^<>\n]*)>")


def to_mrkdwn(text: str) -> str:
    """Return Markdown as mrkdwn. Text that would mention a user or everyone becomes plain text."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    pieces = _CODE.split(escaped)
    for at in range(0, len(pieces), 2):
        piece = _LINK.sub(r"<\2|\1>", pieces[at])
        piece = _HEADING.sub(_to_bold_line, piece)
        pieces[at] = _BOLD.sub(r"*\1*", piece)
    return "".join(pieces)


def _to_bold_line(heading: re.Match[str]) -> str:
    words = heading[1].rstrip("#").rstrip(" \t") or heading[1]
    return f"*{words.replace('**', '')}*"


def from_mrkdwn(text: str, *, names: Mapping[str, str]) -> str:
    """Return a message as readable text. `names` are the known display names of users."""

    def plain(found: re.Match[str]) -> str:
        what, _, shown = found[1].partition("|")
        match what[:1]:
            case "@":
                return f"@{shown or names.get(what[1:], what[1:])}"
            case "#":
                return f"#{shown or what[1:]}"
            case "!":
                return f"@{shown.lstrip('@') or what[1:].partition('^')[0]}"
            case _:
                what = what.removeprefix("mailto:")
                return f"{shown} ({what})" if shown and shown != what else what

    text = _TAGGED.sub(plain, text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
