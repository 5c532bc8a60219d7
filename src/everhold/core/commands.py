"""Chat commands: text -> command, and what a command does to the log. Decides; somebody else commits."""

from __future__ import annotations

import re
from typing import Final

from everhold.core.entries import Command

ALIASES: Final = {"reset": "new", "compact": "compress", "bg": "background", "btw": "background", "task": "background"}

COMMANDS: Final = {
    "new": "start a fresh context; the session, its history and its memory stay",
    "undo": "take back the last turn, /undo N the last N",
    "retry": "take back the last turn and answer its messages again",
    "compress": "compress the conversation; /compress here N keeps the last N exchanges, --preview only shows",
    "stop": "end what is running; what waits unanswered is put aside",
    "title": "name this session",
    "branch": "go on in a copy of this conversation, leaving this one as it is",
    "resume": "go on in an earlier session of yours: /resume ID",
    "queue": "/queue TEXT: answer this after the running turn",
    "steer": "/steer TEXT: let the running turn see this at its next step",
    "background": "/background TEXT: let me work on this beside our conversation",
    "status": "what is going on here",
    "usage": "what this session has cost",
    "model": "the model of this session; /model NAME chooses another, /model default goes back",
    "memory": "what I keep in mind; /memory why, /memory search WORDS, /memory note TEXT, /memory forget WORDS",
    "sessions": "your sessions",
    "whoami": "who you are to everhold",
    "schedule": "/schedule daily 08:30 TEXT: say this to me then; /schedule lists, /schedule remove ID",
    "link": "/link: be known as one person on two platforms",
    "halt": "silence every agent in this chat",
    "wake": "let the agents in this chat speak again",
    "help": "this list",
}
"""The commands there are, with the line /help shows."""

OWNERS_ONLY: Final = frozenset({"model", "compress", "undo", "retry", "resume", "branch", "schedule"})
"""Commands that need an owner in a group: they change what others see, or where their words go."""

TALK: Final = frozenset({"queue", "steer"})
"""Commands that are really messages, with a wish how to be treated."""

_SHAPE: Final = re.compile(r"/([a-z]+)(?:@\S+)?(?:\s+(.*))?", re.DOTALL)


def parse(text: str) -> Command | None:
    """The command a message is, or None. A slash followed by anything unknown is just text: people write paths."""
    if not (text := text.strip()).startswith("/") or (match := _SHAPE.fullmatch(text)) is None:
        return None
    name = ALIASES.get(match[1], match[1])
    if name not in COMMANDS:
        return None
    return Command(name=name, argument=(match[2] or "").strip())


def compress_arguments(text: str) -> tuple[int | None, str, bool]:
    """What /compress is told: (exchanges to keep, focus, only a preview)."""
    words = text.split()
    preview = "--preview" in words
    words = [word for word in words if word != "--preview"]
    if len(words) == 2 and words[0] == "here" and (keep := number(words[1])) is not None:
        return keep, "", preview
    return None, " ".join(words), preview


def number(word: str, *, most: int = 1_000) -> int | None:
    """The number somebody wrote, at most `most`; None if it is none. Whatever is written, it is no error."""
    if not (word.isascii() and word.isdigit()):
        return None  # other scripts have digits, too, and some of them are no numbers: ²
    digits = word.lstrip("0") or "0"
    return most if len(digits) > len(str(most)) else min(int(digits), most)


def help_text() -> str:
    return "\n".join(f"/{name} — {line}" for name, line in COMMANDS.items())
