"""Builds a message from this terminal, with sender, directory and an id by which a repeat is recognised."""

from __future__ import annotations

import getpass
import os
import uuid
from pathlib import Path
from typing import Any


def make_message(location: dict[str, Any], text: str, *, id: str = "") -> dict[str, Any]:
    """Return the argument of `ApiClient.send_message`, for a location from `ApiClient.find_chat_location`."""
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
    """Return the name of the user of this machine. The configuration may link it to a person."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this user id
        return "me"


def _get_working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # the directory was removed
        return ""


def find_repository(directory: str) -> str:
    """Return the path of the repository that contains `directory`, or "". A name alone would not be unique."""
    if not directory:
        return ""
    path = Path(directory)
    return next((parent.as_posix() for parent in (path, *path.parents) if (parent / ".git").exists()), "")
