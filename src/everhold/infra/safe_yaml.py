"""Loads YAML that others wrote. Its aliases and merges can name a value that is exponentially larger than the text."""

from __future__ import annotations

import re
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent

_SURROGATES: Final = re.compile(
    r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\(?:u|U0000)[dD][89a-fA-F][0-9a-fA-F]{2}"
)


class TooManyAliases(ValueError):
    """The text has more aliases than it may have, so it was not loaded."""


def load_foreign_yaml(text: str, *, most_aliases: int) -> Any:
    """Return the value of a YAML text. Raises ValueError if it is invalid, nested too deeply or has too many
    aliases."""
    text = replace_surrogate_escapes(text)
    try:
        # the parser, which expands nothing, is asked only if the text has many asterisks
        if text.count("*") > most_aliases:
            events = YAML(typ="safe").parse(text)
            if sum(isinstance(event, AliasEvent) for event in events) > most_aliases:
                raise TooManyAliases(f"has more than {most_aliases} aliases")
        return YAML(typ="safe").load(text)
    except YAMLError as error:
        raise ValueError((str(error).splitlines() or ["unknown error"])[0]) from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def replace_surrogate_escapes(text: str) -> str:
    """Return YAML or JSON whose escapes stand for characters. One half of a pair is none: it could be stored and sent
    nowhere, and would stop whoever tries."""
    return _SURROGATES.sub(_replace_escape, text)


def _replace_escape(found: re.Match[str]) -> str:
    if not found[1]:
        return "\\ufffd"
    return chr(0x10000 + ((int(found[1], 16) - 0xD800) << 10) + int(found[2], 16) - 0xDC00)
