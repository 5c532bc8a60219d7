"""A message from this terminal: who speaks, from where, and under which number, so that a repeat counts once."""

from __future__ import annotations

import getpass
import os
import uuid
from pathlib import Path
from typing import Any


def make_message(location: dict[str, Any], text: str, *, id: str = "") -> dict[str, Any]:
    """What `ApiClient.send_message` takes, for the location that `ApiClient.find_chat_location` found."""
    directory = _get_working_directory()
    return {
        "location": {"origin": location["origin"], "kind": location["kind"]},
        "text": text,
        "id": id or uuid.uuid4().hex,
        "person": get_local_user(),
        "agent": location["agent"],
        "directory": directory,
        "repo": find_repository(directory),
    }


def get_local_user() -> str:
    """The user of this machine; configuration may know them by another name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this user id
        return "me"


def _get_working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # removed under our feet
        return ""


def find_repository(directory: str) -> str:
    """Where the repository around `directory` is, if there is one: its name alone may be another's as well."""
    if not directory:
        return ""
    path = Path(directory)
    return next((place.as_posix() for place in (path, *path.parents) if (place / ".git").exists()), "")
