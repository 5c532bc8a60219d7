"""Loads YAML that others wrote. Its aliases and merges can name a value that is exponentially larger than the text."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent


class TooManyAliases(ValueError):
    """The text has more aliases than it may have, so it was not loaded."""


def load_foreign_yaml(text: str, *, most_aliases: int) -> Any:
    """Return the value of a YAML text. Raises ValueError if it is invalid, nested too deeply or has too many
    aliases."""
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
