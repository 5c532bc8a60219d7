"""The chat commands. Help, completion, menus and documentation are all made from `COMMAND_SPECS`.

To add a command, add a row to `COMMAND_SPECS`, a row to `COMMAND_ROLES` in `core/roles.py`, and a function to
`engine/commands/handlers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from everhold.core.entries import ChatCommand
from everhold.core.roles import COMMAND_ROLES, RoleRow

ALONE: Final = "alone"
"""The admission puts this command in the place of one that has no meaning on a local platform. Its argument is the
name.
"""

MISTYPED: Final = "mistyped"
"""Ingress puts this command in the place of one that does not exist, so that the text does not reach the model. Its
argument is the word that was typed.
"""

QUIETLY: Final = "quietly"
"""The argument of a `/halt` that the admission copies to the other sessions of a chat. This `/halt` gets no reply."""


SCHEDULE_LIST_WORDS: Final = ("", "list")
SCHEDULE_REMOVE_WORDS: Final = ("remove", "delete", "pause", "resume", "run")
"""Words after `/schedule` that list the schedules, or remove, pause or run one. Everything else adds one."""

# -- parsers of arguments ----------------------------------------------------------------------------------------------
# A parser never raises. It returns what its command's handler takes as its second parameter.


class UndoArguments(Struct, frozen=True):
    """What `/undo` takes back: the last `turns` turns, or the last compression. If both are unset, the text was
    invalid.
    """

    turns: int = 0
    compression: bool = False


class TitleArguments(Struct, frozen=True):
    """The new title, and whether memories use it as the session's name."""

    title: str
    memory: bool = False


class ParsedSubcommand(Struct, frozen=True):
    """A word that says what to do, and the text after it."""

    word: str
    text: str


def parse_text(text: str) -> str:
    """The argument as the person wrote it."""
    return text


def parse_undo(text: str) -> UndoArguments:
    if text in ("compress", "compression"):
        return UndoArguments(compression=True)
    return UndoArguments(turns=(parse_count(text) or 0) if text else 1)


def parse_title(text: str) -> TitleArguments:
    return TitleArguments(title=text.removesuffix("--memory").strip(), memory=text.endswith("--memory"))


def parse_subcommand(text: str) -> ParsedSubcommand:
    word, _, rest = text.partition(" ")
    return ParsedSubcommand(word=word, text=rest.strip())


def parse_approval(text: str) -> ParsedSubcommand:
    """Parse the id of a request, and the text after it."""
    id, _, rest = text.strip().partition(" ")
    return ParsedSubcommand(word=id, text=rest.strip())


def parse_compress_arguments(text: str) -> tuple[int | None, str, bool]:
    """Parse the text after /compress: (exchanges to keep, focus, whether to show only a preview)."""
    words = text.split()
    preview = "--preview" in words
    words = [word for word in words if word != "--preview"]
    if len(words) == 2 and words[0] == "here" and (keep := parse_count(words[1])) is not None:
        return keep, "", preview
    return None, " ".join(words), preview


def parse_count(word: str, *, most: int = 1_000) -> int | None:
    """Return the number in a word, at most `most`; None if the word is not a number. It never raises."""
    if not (word.isascii() and word.isdigit()):
        return None  # isdigit() is also true for digits that int() refuses, such as ²
    digits = word.lstrip("0") or "0"
    return most if len(digits) > len(str(most)) else min(int(digits), most)


# -- the table ---------------------------------------------------------------------------------------------------------


class CommandSpec(Struct, frozen=True):
    """One chat command. Its handler is the function in `engine/commands/handlers.py` that `@handles` its name."""

    name: str
    help: str
    """What the command does, in one sentence that begins with a verb."""
    syntax: str = ""
    """The arguments as help shows them. Capitals stand for a value, brackets enclose optional parts."""
    parse: Callable[[str], Any] = parse_text
    """Turns the text after the name into the arguments of the handler."""
    aliases: tuple[str, ...] = ()
    is_message: bool = False
    """If there is an argument, it is a message to the agent, and no command runs."""

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.syntax}".rstrip()

    @property
    def menu_line(self) -> str:
        """What a platform's menu shows beside the name."""
        return f"{self.help}: {self.usage}" if self.syntax else self.help


COMMAND_SPECS: Final = (
    CommandSpec("new", "Start with an empty context; session, history and memory stay", aliases=("reset",)),
    CommandSpec("undo", "Take back the last turn, N turns, or a compression", "[N | compress]", parse_undo),
    CommandSpec("retry", "Take back the last turn and answer its messages again"),
    CommandSpec("compress", "Compress the conversation", "[here N | TOPIC] [--preview]", parse_compress_arguments,
                ("compact",)),
    CommandSpec("pin", "Keep a message in view word for word: yours, entry N, or a text", "[N | TEXT]"),
    CommandSpec("unpin", "Remove a pin", "N | all"),
    CommandSpec("pins", "List what is pinned"),
    CommandSpec("stop", "Stop the running turn, or put waiting messages aside"),
    CommandSpec("title", "Show or change the title of this session", "[TITLE] [--memory]", parse_title),
    CommandSpec("branch", "Continue in a copy of this conversation"),
    CommandSpec("resume", "Continue one of your earlier sessions", "ID"),
    CommandSpec("queue", "Send a message that is answered after the running turn", "TEXT", is_message=True),
    CommandSpec("steer", "Send a message that the running turn sees at its next step", "TEXT", is_message=True),
    CommandSpec("background", "Start a task that runs beside the conversation", "TEXT", aliases=("bg", "btw", "task")),
    CommandSpec("status", "Show what is happening in this session"),
    CommandSpec("usage", "Show what this session has cost"),
    CommandSpec("model", "Show or choose the model of this session", "[NAME | default]"),
    CommandSpec("memory", "Show or change memory", "[why | search WORDS | note TEXT | forget WORDS]", parse_subcommand),
    CommandSpec("sessions", "List your sessions"),
    CommandSpec("whoami", "Show who you are to everhold"),
    CommandSpec("schedule", "List, add or change scheduled messages",
                "[WHEN TEXT | run, pause, resume or remove ID]"),
    CommandSpec("link", "Link your accounts on two platforms to one person", "[CODE]"),
    CommandSpec("halt", "Silence every agent in this chat"),
    CommandSpec("wake", "Let the agents in this chat answer again"),
    CommandSpec("approvals", "List the calls that wait for permission", "[ID | rules | revoke RULE]"),
    CommandSpec("approve", "Allow a call that an agent asks to run, once or always", "ID [always]", parse_approval),
    CommandSpec("deny", "Deny a call that an agent asks to run", "ID [REASON]", parse_approval),
    CommandSpec("help", "Show this list"),
)  # fmt: skip

COMMANDS: Final = {spec.name: spec for spec in COMMAND_SPECS}
ALIASES: Final = {alias: spec.name for spec in COMMAND_SPECS for alias in spec.aliases}
MESSAGE_COMMANDS: Final = frozenset(spec.name for spec in COMMAND_SPECS if spec.is_message)
"""Commands that are messages. Each says how a running turn treats its message."""
COMMAND_MENU: Final = {spec.name: spec.menu_line for spec in COMMAND_SPECS}
"""What platforms show in their menus: name -> line."""


# -- functions over the table ------------------------------------------------------------------------------------------

_ACTION_SYNTAX: Final = {"schedule make": "schedule WHEN TEXT", "schedule remove": "schedule remove ID"}
_COMMAND_PATTERN: Final = re.compile(r"/([a-z]+)(?:@\S+)?(?:\s+(.*))?", re.DOTALL)


def parse_command(text: str) -> ChatCommand | None:
    """Return the command in a message, or None. An unknown name after a slash is plain text, because people write
    paths.
    """
    if not (text := text.strip()).startswith("/") or (match := _COMMAND_PATTERN.fullmatch(text)) is None:
        return None
    name = ALIASES.get(match[1], match[1])
    if name not in COMMANDS:
        return None
    return ChatCommand(name=name, argument=(match[2] or "").strip())


_TYPED_PATTERN: Final = re.compile(r"/([A-Za-z]{1,20})(?:@\S+)?(?:\s.*)?", re.DOTALL)
_FOREIGN_WORDS: Final = {
    "clear": "new", "continue": "resume", "cron": "schedule", "fork": "branch", "forget": "memory forget",
    "note": "memory note", "remember": "memory note", "remind": "schedule", "reminder": "schedule", "cancel": "stop",
    "abort": "stop", "cost": "usage", "commands": "help", "rename": "title", "history": "sessions",
}  # fmt: skip
"""Names of commands that people know from other programs -> what does it here."""
_ORDINARY_WORDS: Final = frozenset(
    "bin boot dev etc home lib media mnt opt proc root run sbin srv sys tmp usr var start".split()
)
"""Words after a slash that are not mistyped: folders, and what some platforms send when a chat begins."""


def find_mistyped_command(text: str) -> ChatCommand | None:
    """Return the command that stands for a mistyped one, if a text begins like a command and is none. A path, and a
    word that resembles no command, are text.
    """
    if (text := text.strip())[:1] != "/" or (match := _TYPED_PATTERN.fullmatch(text)) is None:
        return None
    word = match[1]
    return ChatCommand(name=MISTYPED, argument=word) if suggest_command(word) else None


def suggest_command(word: str) -> str:
    """Return the command that a person may have meant, without its slash; empty if none resembles the word."""
    typed = word.lower()
    if typed in COMMANDS or typed in ALIASES:
        return "" if typed == word else ALIASES.get(typed, typed)
    if typed in _FOREIGN_WORDS:
        return _FOREIGN_WORDS[typed]
    if typed in _ORDINARY_WORDS or len(typed) < 3:
        return ""
    most = 1 if len(typed) <= 5 else 2
    near = [(distance, name) for name in (*COMMANDS, *ALIASES) if (distance := _count_edits(typed, name)) <= most]
    return ALIASES.get(found := min(near)[1], found) if near else ""


def explain_mistyped(word: str) -> str:
    """Return what a person is told who typed a command that does not exist."""
    meant = suggest_command(word)
    question = f" Did you mean /{meant}?" if meant else ""
    return (
        f"There is no command /{word}.{question} The agent did not get your message. /help lists the commands. "
        "To send the agent a text that begins with a slash, put another word first."
    )


def _count_edits(one: str, other: str) -> int:
    """Return how many letters are missing, added, changed or swapped with a neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, against in enumerate(other, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != against))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == against:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


def name_action(command: ChatCommand) -> str:
    """Return the row of `COMMAND_ROLES` that a command belongs to: its name, with a subcommand that has its own row."""
    name, argument = command.name, command.argument
    match name:
        case "title":
            return "title --memory" if parse_title(argument).memory else name
        case "memory":
            action = f"memory {parse_subcommand(argument).word}"
        case "schedule":
            word = parse_subcommand(argument).word
            action = "schedule remove" if word in SCHEDULE_REMOVE_WORDS else "schedule make"
            return name if word in SCHEDULE_LIST_WORDS else action
        case _:
            return name
    return action if action in COMMAND_ROLES else name


def describe_action(action: str) -> str:
    """Return a row of the table of roles as people write it."""
    return f"/{_ACTION_SYNTAX.get(action, action)}"


def get_command_roles(command: ChatCommand) -> RoleRow:
    """Return what the table of roles says about a command. An unknown command is answered with the help."""
    return COMMAND_ROLES.get(name_action(command), COMMAND_ROLES["help"])


def render_help() -> str:
    """What `/help` answers."""
    return "\n".join(f"{spec.usage} — {spec.help}" for spec in COMMAND_SPECS)


def complete_command(text: str) -> list[str]:
    """Return the commands that complete a line that begins with `text`."""
    return [f"/{name}" for name in sorted((*COMMANDS, *ALIASES)) if f"/{name}".startswith(text)] if text else []
