"""The commands with their arguments, help and examples. The reference page and the completions are made from this."""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from everhold.cli import parser_data
from everhold.cli.parser_memory import add_memory_setup
from everhold.cli.parser_plugin import add_plugin_commands
from everhold.cli.parser_service import add_service_commands, add_service_setup, add_supervision_options
from everhold.cli.parser_skills import add_skill_commands
from everhold.cli.parser_tools import add_tool_setup

_ID: Final = "an id, a unique prefix of one, a title, an address, or `last`"


_NAMES: Final = frozenset({"ID", "CODE", "NAME", "PLATFORM:ID", "PERSON", "PATH"})
"""Arguments that name something. An empty one is refused, because it would mean "all" or nothing."""


class UsageMistake(SystemExit):
    """The arguments are invalid. The parser has printed the message and the remedy."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(2)
        self.message = message
        self.remedy = remedy


class CommandParser(argparse.ArgumentParser):
    """Prints an error in two lines: what is wrong, and the remedy."""

    def parse_command_line(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments of a command. Mistakes name the command that was given, not `everhold` alone."""
        args, unknown = self.parse_known_args(list(argv))
        parser = self._find_command(argv)
        if unknown:
            quotes = (
                "" if all(word.startswith("-") for word in unknown) else "; put text that contains spaces in quotes"
            )
            parser.fail(
                f"unknown arguments: {' '.join(unknown)}", f"`{parser.prog} --help` shows the arguments{quotes}"
            )
        for action in parser._actions:
            if action.metavar in _NAMES and action.default != "" and getattr(args, action.dest, None) == "":
                parser.error(f"argument {'/'.join(action.option_strings) or action.metavar} is empty")
        return args

    def _find_command(self, argv: Sequence[str]) -> CommandParser:
        found: CommandParser = self
        for word in argv:
            for action in found._actions:
                if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                    found = action.choices[word]
                    break
        return found

    def error(self, message: str) -> NoReturn:
        _, is_choice, wrong = message.partition(": invalid choice: '")
        remedy = f"`{self.prog} --help` shows the arguments"
        if is_choice:
            given, _, choices = wrong.rpartition("' (choose from ")
            known = re.findall(r"[\w-]+", choices)
            near = difflib.get_close_matches(given, known, n=1, cutoff=0.7)
            message = f"{given!r} is not a valid value"
            remedy = f"did you mean `{near[0]}`?" if near else f"use one of: {', '.join(known)}"
        self.fail(message, remedy)

    def fail(self, message: str, remedy: str) -> NoReturn:
        print(f"{self.prog}: {message}\n  → {remedy}", file=sys.stderr)
        raise UsageMistake(message, remedy)


def build_parser() -> CommandParser:
    general = _build_general_options()
    top = CommandParser(
        prog="everhold",
        description="A gateway for long-lived agents. It loses no accepted message, and delivers memory writes.",
        epilog=_format_examples(
            ("everhold chat", "chat in this terminal; no configuration needed"),
            ("everhold up", "run the gateway; chat, send and status then connect to it"),
            ("everhold audit", "check everhold's promises on your own data"),
        )
        + "\n\nexit codes: 0 done, 1 failed, 2 usage, 75 try again, 78 configuration",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[general],
    )
    top.add_argument("--version", action="version", version=_format_version(), help="show the version and exit")
    commands = _CommandGroup(top, general, dest="command", required=True)
    _add_running_commands(commands)
    _add_chat_commands(commands)
    _add_inspection_commands(commands)
    _add_changing_commands(commands)
    _add_configuration_commands(commands)
    return top


def _format_version() -> str:
    from everhold import __version__

    return f"everhold {__version__}"


def _build_general_options() -> CommandParser:
    """Return the options that work before and after every command."""
    general = CommandParser(add_help=False)
    options = general.add_argument_group("options of every command")
    suppressed: Any = argparse.SUPPRESS  # so that a missing option after the command keeps the value given before it
    options.add_argument(
        "--home", metavar="DIR", default=suppressed, help="use this home (default: $EVERHOLD_HOME, else ~/.everhold)"
    )
    options.add_argument("--log", choices=("text", "json"), default=suppressed, help="set the format of log lines")
    options.add_argument("--json", action="store_true", default=suppressed, help="print results as JSON")
    return general


class _CommandGroup:
    """A parser to which commands are added."""

    def __init__(self, parser: argparse.ArgumentParser, general: CommandParser, *, dest: str, required: bool) -> None:
        self.general = general
        self.parsers = parser.add_subparsers(
            dest=dest, required=required, metavar=dest.upper(), title="commands", parser_class=CommandParser
        )

    def add_command(
        self, name: str, summary: str, *examples: tuple[str, str], module: str = "", about: str = ""
    ) -> argparse.ArgumentParser:
        made = self.parsers.add_parser(
            name,
            help=summary,
            description=about or summary[:1].upper() + summary[1:] + ".",
            epilog=_format_examples(*examples) if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[self.general],
        )
        if module:
            made.set_defaults(module=module)
        return made

    def add_group(self, name: str, summary: str, *, module: str, default: str = "") -> _CommandGroup:
        """Add a command with subcommands. `default` is the subcommand if none is given."""
        made = self.add_command(name, summary, module=module)
        return _CommandGroup(made, self.general, dest="action", required=not default)


def _format_examples(*examples: tuple[str, str]) -> str:
    wide = max(len(command) for command, _ in examples)
    lines = [f"  {command:<{wide}}  {what}".rstrip() for command, what in examples]
    return "\n".join(["examples:", *lines])


# -- the commands ------------------------------------------------------------------------------------------------------


def _add_running_commands(commands: _CommandGroup) -> None:
    up = commands.add_command(
        "up",
        "run the gateway in the foreground",
        ("everhold up", "until Ctrl-C"),
        ("everhold --home ./lab up --port 0", "another home, any free port"),
        ("everhold up --last-good", "if config.yaml is invalid"),
        module="up",
        about="Runs the gateway in the foreground. SIGTERM or Ctrl-C gives running turns 30 seconds, a second one\n"
        "stops them at once. In both cases unfinished work resumes at the next start.",
    )
    up.add_argument("--port", type=_parse_port, metavar="N", help="listen on this port; 0: any free port")
    up.add_argument("--last-good", action="store_true", help="start with the last valid configuration")
    add_supervision_options(up)
    opened = commands.add_command(
        "open",
        "open the console in a browser, logged in",
        ("everhold open", ""),
        ("everhold open --token laptop", "as the person of a token from http.tokens"),
        module="open",
        about="Makes a link that logs in once and within ten minutes, and opens it in your browser if there is one.\n"
        "Over SSH, forward the port first: ssh -L 8765:127.0.0.1:8765 HOST.",
    )
    opened.add_argument("--token", default="", metavar="NAME", help="log in with the rights of this token")
    opened.add_argument("--no-browser", action="store_true", help="only print the link")
    commands.add_command(
        "demo",
        "fill a new home with an invented month",
        ("everhold --home ./demo demo", "then everhold --home ./demo up"),
        module="demo",
        about="Fills a new home with a month: people, conversations, notes, a compression, dead letters, a schedule.\n"
        "So every page of the console has something to show. It needs no key and no network.",
    )
    commands.add_command(
        "drain",
        "end the running gateway without losing work",
        ("everhold drain", "the same as SIGTERM"),
        module="drain",
        about="Ends the running gateway: /ready answers 503 at once, nothing new is claimed, running turns end or are\n"
        "handed over, and accounts and leases are released.",
    )
    add_service_commands(commands)


def _add_chat_commands(commands: _CommandGroup) -> None:
    chat = commands.add_command(
        "chat",
        "chat in this terminal",
        ("everhold chat", "continue your conversation"),
        ("everhold chat --session work", "use a separate conversation"),
        ("everhold chat --agent coder", "chat with another agent"),
        module="chat",
        about="Chats through a running gateway if there is one, else in its own process. Send commands such as /help\n"
        "and /undo like messages. Ctrl-C stops a reply, Ctrl-D ends the chat; the session stays.",
    )
    chat.add_argument("--session", default="me", metavar="NAME", help=f"the chat's name, or {_ID} (default: me)")
    chat.add_argument("--agent", default="", metavar="A", help="the agent (default: the default agent)")
    send = commands.add_command(
        "send",
        "send one message and print the reply",
        ("everhold send 'What did we decide?'", ""),
        ("everhold send --session work --json 'hello'", "print session and entry as JSON"),
        ("everhold send 'What is this?' --file photo.jpg", "send a picture or a document"),
        ("echo hello | everhold send -", "read standard input"),
        module="send",
        about="Sends one message and prints the reply. Exits 0 if it is answered, 75 if the message is stored but was\n"
        "not answered in time. A running gateway answers it later.",
    )
    send.add_argument("text", metavar="TEXT", help="the message; - reads standard input")
    send.add_argument("--session", default="me", metavar="NAME", help=f"the chat's name, or {_ID} (default: me)")
    send.add_argument("--agent", default="", metavar="A", help="the agent (default: the default agent)")
    send.add_argument(
        "--file", metavar="FILE", action="append", default=[], help="a picture or document to send; may be repeated"
    )
    send.add_argument("--id", metavar="ID", help="the message's id; a repeated id has no effect")
    send.add_argument(
        "--timeout",
        type=_parse_seconds,
        default=300.0,
        metavar="S",
        help="seconds to wait for the reply (default: 300)",
    )

    serving = commands.add_command(
        "mcp",
        "serve the memory to an MCP client over standard input and output",
        ("everhold mcp", "a client starts this command"),
        ("everhold mcp --agent coder", "the memory of another agent"),
        module="mcp",
        about="Serves the tools search, remember, why and list to a client of the Model Context Protocol. The client\n"
        "starts this command and speaks over its standard input and output. The memory is what the agent has of\n"
        "you. Uses a running gateway if there is one, else opens the home for each message. A running gateway\n"
        "serves the same tools over HTTP at /mcp, with the token of a person.",
    )
    serving.add_argument("--agent", default="", metavar="A", help="the agent (default: the default agent)")


def _add_inspection_commands(commands: _CommandGroup) -> None:
    status = commands.add_command(
        "status",
        "show the state of the gateway; exit 1 if something is wrong",
        ("everhold status --watch", "repeat every two seconds"),
        module="status",
    )
    status.add_argument("--watch", action="store_true", help="repeat every two seconds")
    commands.add_command(
        "hosts",
        "list the hosts of a shared store and what they hold",
        ("everhold hosts", ""),
        module="hosts",
        about="Lists the hosts that share a PostgreSQL store: version, state, accounts and cursors. Keys of the\n"
        "configuration that differ between hosts are named, without their values.",
    )
    sessions = commands.add_group("sessions", "show logs and contexts of sessions", module="sessions", default="list")
    _add_session_views(sessions)
    _add_session_searches(sessions)
    audit = commands.add_command(
        "audit",
        "check the nine promises on the store; exit 1 if one is broken",
        ("everhold audit", "check everything"),
        ("everhold audit last", "check one session"),
        module="audit",
        about="Checks the nine promises on the store and prints the evidence. Items in doubt are listed, too.",
    )
    audit.add_argument("id", nargs="?", metavar="ID", help=_ID)
    _add_eval_commands(commands)
    add_plugin_commands(commands)
    add_skill_commands(commands)
    commands.add_command("agents", "list the agents with their models, memories and tools", module="agents")
    _add_people_commands(commands)
    logs = commands.add_command(
        "logs", "show the gateway's log lines", ("everhold logs -f", "follow new lines"), module="logs"
    )
    logs.add_argument("-f", "--follow", action="store_true", help="follow new lines")
    logs.add_argument(
        "-n", "--lines", type=_parse_number, default=50, metavar="N", help="the number of last lines (default: 50)"
    )


def _add_session_views(sessions: _CommandGroup) -> None:
    listed = sessions.add_command("list", "list the newest sessions", ("everhold sessions list --json", ""))
    listed.add_argument("--limit", type=_parse_number, default=50, metavar="N", help="the maximum number (default: 50)")
    shown = sessions.add_command("show", "show a session's log", ("everhold sessions show last", ""))
    _add_name_argument(shown)
    shown.add_argument("--after", type=_parse_count, default=0, metavar="SEQ", help="show only entries after this one")
    context = sessions.add_command(
        "context",
        "show the context that the model received, or would receive next",
        ("everhold sessions context last", "the context of the next turn"),
        ("everhold sessions context last --at 12", "the context of the thought at or after entry 12"),
    )
    _add_name_argument(context)
    context.add_argument("--at", type=_parse_number, metavar="SEQ", help="the thought at or after this entry")
    _add_name_argument(sessions.add_command("compressions", "list a session's compressions with their summaries"))
    diff = sessions.add_command(
        "diff",
        "show what a compression replaced, and its replacement",
        ("everhold sessions compressions last", "list the compressions with their numbers"),
        ("everhold sessions diff last --compression 47", ""),
    )
    _add_name_argument(diff)
    diff.add_argument(
        "--compression",
        type=_parse_number,
        required=True,
        metavar="OP",
        help="the number from `everhold sessions compressions`",
    )


def _add_session_searches(sessions: _CommandGroup) -> None:
    search = sessions.add_command(
        "search", "search the entries of all sessions", ("everhold sessions search 'dentist tuesday'", "")
    )
    search.add_argument("text", metavar="TEXT", help="words that must all occur")
    search.add_argument("--limit", type=_parse_number, default=50, metavar="N", help="the maximum number (default: 50)")
    export = sessions.add_command(
        "export",
        "write a session to standard output",
        ("everhold sessions export last > session.jsonl", "all entries, one per line"),
        ("everhold sessions export last --format openai", "the messages in OpenAI's format"),
        ("everhold sessions export last --format markdown", "the conversation as text"),
    )
    _add_name_argument(export)
    export.add_argument(
        "--format", choices=("jsonl", "openai", "markdown"), default="jsonl", help="the format (default: jsonl)"
    )


def _add_people_commands(commands: _CommandGroup) -> None:
    pairing = commands.add_group("pairing", "approve and revoke access by code", module="pairing", default="list")
    pairing.add_command("list", "list open pairing requests and granted identities")
    approve = pairing.add_command(
        "approve",
        "grant access to the sender who received this code",
        ("everhold pairing approve K7QM-2XWD", ""),
        ("everhold pairing approve K7QM-2XWD --as ada", "and link the identity to a person from `people`"),
        about="A stranger who writes to a bot receives a code and gives it to you. The code is valid once and for ten\n"
        "minutes, and grants direct messages to that bot. Access in groups is configured in config.yaml.",
    )
    approve.add_argument("code", metavar="CODE", help="the code that the sender received")
    approve.add_argument("--as", dest="person", default="", metavar="NAME", help="the person, a name from `people`")
    revoke = pairing.add_command("revoke", "revoke an identity's access", ("everhold pairing revoke telegram:1001", ""))
    revoke.add_argument("identity", metavar="PLATFORM:ID", help="an identity from `everhold pairing list`")
    tools = commands.add_group(
        "tools", "look at the tools of tool servers, and confirm changes", module="tools", default="list"
    )
    tools.add_command("list", "list tool servers, and the tools that wait for a confirmation")
    confirm = tools.add_command(
        "confirm",
        "offer the new and changed tools of a server",
        ("everhold tools confirm files 1f8a02c4d9e7", "the digest is shown by `everhold tools`"),
        about="A tool whose description or parameters changed since you saw them is not offered to any model, because\n"
        "a description is text that a model follows. Look at it with `everhold tools` first.",
    )
    confirm.add_argument("server", metavar="SERVER", help="a server from `mcp` in the configuration")
    confirm.add_argument("digest", metavar="DIGEST", help="the digest of what you looked at")
    people = commands.add_group("people", "list people and link their identities", module="people", default="list")
    people.add_command("list", "list people with their identities")
    link = people.add_command(
        "link",
        "link an identity to a person",
        ("everhold people link telegram:1001 ada", ""),
        ("everhold people link discord:77 telegram:1001", "both are one person, who has no name yet"),
        about="Everything that was said under the identity belongs to the person from the next message on, also what\n"
        "was said before. Nothing in the log is rewritten, and `everhold people unlink` takes it back.",
    )
    link.add_argument("identity", metavar="PLATFORM:ID", help="the platform's id, not a display name")
    link.add_argument("person", metavar="PERSON", help="the person's name, one of their identities, or their id")
    link.add_argument(
        "--since",
        type=_parse_time,
        metavar="TIME",
        help="when the identity became this person's (default: always, or now where ids can change hands)",
    )
    unlink = people.add_command(
        "unlink", "unlink an identity from its person", ("everhold people unlink telegram:1001", "")
    )
    unlink.add_argument("identity", metavar="PLATFORM:ID", help="an identity from `everhold people list`")
    name = people.add_command("name", "give a person a name", ("everhold people name telegram:1001 ada", ""))
    name.add_argument("person", metavar="PERSON", help="the person's name, one of their identities, or their id")
    name.add_argument("name", metavar="NAME", help="the new name; it belongs to one person at a time")
    people.add_command("peers", "list how the memories call each identity")
    peer = people.add_command(
        "peer",
        "assign a name in a memory that several people used to one identity",
        ("everhold people peer honcho 555 --to telegram:555", ""),
        about="Until then nobody recalls it. Afterwards it is recalled for that person, and new messages of the\n"
        "identity go there.",
    )
    peer.add_argument("memory", metavar="MEMORY", help="a memory from `everhold memory status`")
    peer.add_argument("peer", metavar="PEER", help="a peer from `everhold people peers`")
    peer.add_argument("--to", dest="identity", required=True, metavar="PLATFORM:ID", help="whose it is")
    people.add_command("events", "list who was linked to whom, when, by whom and with which proof")
    logins = commands.add_group("logins", "list and end logins of browsers", module="logins", default="list")
    logins.add_command("list", "list the logins that are valid now")
    end = logins.add_command(
        "end",
        "end a login; it is refused from the next request on",
        ("everhold logins end 5f0c8a1be3d94c27", ""),
        ("everhold logins end --all", "log every browser out"),
    )
    end.add_argument("id", nargs="?", metavar="ID", help="an id from `everhold logins list`")
    end.add_argument("--all", action="store_true", help="end all logins")
    schedules = commands.add_group(
        "schedules", "list and delete schedules, which /schedule makes in a chat", module="schedules", default="list"
    )
    schedules.add_command("list", "list all schedules with the time they fire next")
    remove = schedules.add_command("remove", "delete a schedule", ("everhold schedules remove 4qk2vz", ""))
    remove.add_argument("id", metavar="ID", help="an id from `everhold schedules list`")
    _add_approval_commands(commands)
    hooks = commands.add_group("hooks", "list and test webhooks of the configuration", module="hooks", default="list")
    hooks.add_command("list", "list the webhooks with their path and the chat that hears them")
    test = hooks.add_command(
        "test",
        "show what the agent would hear of a delivery",
        ("everhold hooks test deploys --data event.json", ""),
        ("everhold hooks test deploys --data event.json --send", "sign it, and let the agent answer it"),
    )
    test.add_argument("name", metavar="NAME", help="a hook from `everhold hooks list`")
    test.add_argument("--data", metavar="FILE", default="-", help="the body; - reads it from the input")
    test.add_argument(
        "--header", metavar="NAME:VALUE", action="append", default=[], help="a header of the delivery; may be repeated"
    )
    test.add_argument("--send", action="store_true", help="deliver it, so that the agent answers it")


def _add_approval_commands(commands: _CommandGroup) -> None:
    approvals = commands.add_group(
        "approvals", "list and answer calls that wait for permission", module="approvals", default="list"
    )
    approvals.add_command("list", "list the calls that wait for permission")
    show = approvals.add_command("show", "show a call whole", ("everhold approvals show 7K2P4QXM", ""))
    approve = approvals.add_command(
        "approve",
        "let a call run",
        ("everhold approvals approve 7K2P4QXM", "once"),
        ("everhold approvals approve 7K2P4QXM --always", "and the same call later, too"),
    )
    approve.add_argument("--always", action="store_true", help="exactly the same call needs no permission later")
    deny = approvals.add_command(
        "deny", "deny a call", ("everhold approvals deny 7K2P4QXM --reason 'use a branch'", "")
    )
    deny.add_argument("--reason", default="", metavar="TEXT", help="what the agent is told; it answers that")
    for command in (show, approve, deny):
        command.add_argument("id", metavar="ID", help="an id from `everhold approvals`, or its first characters")
    approvals.add_command("rules", "list the rules that `always` made")
    revoke = approvals.add_command("revoke", "end a rule", ("everhold approvals revoke R7K2P4QXM", ""))
    revoke.add_argument("id", metavar="RULE", help="an id from `everhold approvals rules`")


def _add_eval_commands(commands: _CommandGroup) -> None:
    evaluate = commands.add_group("eval", "score how much summaries keep", module="eval")
    fidelity = evaluate.add_command(
        "compression",
        "score what summaries keep of conversations with known facts",
        ("everhold eval compression", "the offline model, on the bundled conversations"),
        ("everhold eval compression --model small", "one of your models"),
        ("everhold eval compression --agent main --conversations session.jsonl", "on one of your exports"),
        ("everhold eval compression --baseline scores.json", "exit 1 if the score is worse than before"),
        about="Replays conversations in a temporary store, compresses them, and counts what is left: facts in the\n"
        "context of the next turn, facts that a search finds, size, cost and time. It does not change the home. Exits\n"
        "1 if a session changed its id, a compression failed, or a baseline was better.",
    )
    fidelity.add_argument("--agent", default="", metavar="A", help="score the model that writes this agent's summaries")
    fidelity.add_argument("--model", default="", metavar="M", help="score this model from `models`")
    fidelity.add_argument(
        "--conversations", default="", metavar="PATH", help="a file or folder: exports (.jsonl) or texts (.txt)"
    )
    fidelity.add_argument(
        "--compressions",
        type=_parse_compression_counts,
        default=(1, 3),
        metavar="N,…",
        help="the numbers of compressions; `auto`: as configured (default: 1,3)",
    )
    fidelity.add_argument(
        "--keep",
        type=_parse_count,
        default=2,
        metavar="N",
        help="the number of exchanges that stay unchanged (default: 2)",
    )
    fidelity.add_argument("--plot", default="", metavar="FILE", help="write a plot as SVG")
    fidelity.add_argument("--baseline", default="", metavar="FILE", help="compare with earlier scores")
    fidelity.add_argument("--renew", action="store_true", help="write the baseline instead of comparing with it")


def _add_changing_commands(commands: _CommandGroup) -> None:
    _add_undo_commands(commands)
    _add_pin_commands(commands)
    _add_compress_command(commands)
    memory = commands.add_group("memory", "search, explain and manage what is remembered", module="memory")
    _add_memory_queries(memory)
    _add_memory_transfers(memory)
    _add_person_memory_commands(memory)
    _add_dead_letter_commands(commands)


def _add_undo_commands(commands: _CommandGroup) -> None:
    undo = commands.add_command(
        "undo",
        "undo the last turns, or the last compression",
        ("everhold undo last turn", ""),
        ("everhold undo last turn -n 3", "undo the last three"),
        ("everhold undo last compress", "restore the originals"),
        module="undo",
    )
    _add_name_argument(undo)
    undo.add_argument(
        "what", nargs="?", choices=("turn", "compress"), default="turn", help="what to undo (default: turn)"
    )
    undo.add_argument(
        "-n", dest="count", type=_parse_number, default=1, metavar="N", help="the number of turns (default: 1)"
    )
    _add_name_argument(commands.add_command("stop", "stop the running turn of a session", module="undo"))


def _add_pin_commands(commands: _CommandGroup) -> None:
    pin = commands.add_command(
        "pin",
        "keep an entry in a session's context word for word",
        ("everhold pin last 12", "entry 12 stays, whatever is compressed"),
        module="pins",
        about="Keeps an entry in a session's context word for word, whatever is compressed. The pins of a session may\n"
        "take 2,000 tokens, and at most an eighth of the model's window. Exits 1 if nothing was pinned.",
    )
    _add_name_argument(pin)
    pin.add_argument("entry", type=_parse_number, metavar="N", help="the number of the entry")
    unpin = commands.add_command(
        "unpin",
        "remove a pin, or all pins of a session",
        ("everhold unpin last 12", ""),
        ("everhold unpin last --all", "remove all pins"),
        module="pins",
    )
    _add_name_argument(unpin)
    unpin.add_argument("entry", nargs="?", type=_parse_number, metavar="N", help="the number of the pinned entry")
    unpin.add_argument("--all", action="store_true", help="remove all pins of the session")
    _add_name_argument(commands.add_command("pins", "list what is pinned in a session", module="pins"))


def _add_compress_command(commands: _CommandGroup) -> None:
    compress = commands.add_command(
        "compress",
        "replace the older part of a session's context with a summary",
        ("everhold compress last --preview", "show what would be replaced and what would stay"),
        ("everhold compress last --keep 3", "keep the last three exchanges unchanged"),
        ("everhold compress last --focus 'the release plan'", "cover this topic in detail"),
        module="compress",
        about="Replaces the older part of a session's context with a summary, and waits until it is done. The session\n"
        "keeps its id and nothing is deleted: `everhold undo ID compress` restores the originals. Exits 1 if the\n"
        "context did not change.",
    )
    _add_name_argument(compress)
    compress.add_argument("--preview", action="store_true", help="show what would be done, and change nothing")
    compress.add_argument("--keep", type=_parse_count, metavar="N", help="exchanges that stay (default: as configured)")
    compress.add_argument("--focus", default="", metavar="TEXT", help="a topic that the summary covers in detail")


def _add_memory_queries(memory: _CommandGroup) -> None:
    memory.add_command("status", "show each agent's memories: backlog, dead letters, last error")
    search = memory.add_command(
        "search",
        "search an agent's memories for a person",
        ("everhold memory search 'when does the boiler'", "for you"),
        ("everhold memory search tea --person ada --agent coder", ""),
    )
    search.add_argument("text", metavar="TEXT", help="the words to search for")
    search.add_argument("--agent", default="", metavar="A", help="the agent (default: the default agent)")
    search.add_argument("--person", default="", metavar="NAME", help="the person (default: you)")
    search.add_argument("--limit", type=_parse_number, default=20, metavar="N", help="the maximum number (default: 20)")
    why = memory.add_command(
        "why", "show what was recalled for an answer, and what was left out", ("everhold memory why last", "")
    )
    why.add_argument("session", nargs="?", default="last", metavar="ID", help=f"{_ID} (default: last)")
    why.add_argument("--at", type=_parse_number, metavar="SEQ", help="the answer at or before this entry")
    note = memory.add_command("note", "add a note to all memories", ("everhold memory note 'Ada likes tea'", ""))
    note.add_argument("text", metavar="TEXT", help="the note")
    note.add_argument("--session", default="last", metavar="ID", help=f"{_ID} (default: last)")


def _add_memory_transfers(memory: _CommandGroup) -> None:
    compare = memory.add_command(
        "compare",
        "compare what memories found for recent questions, and what of it the answers used",
        ("everhold memory compare", "the last 50 questions to the default agent"),
        ("everhold memory compare --agent coder --person ada --limit 200 --json", ""),
        about="Compares the memories of an agent by the questions that people asked: hits, time, tokens, overlap\n"
        "and the evidence that the answers used. A memory with `shadow: true` in the configuration is written and\n"
        "asked, but the model never sees what it finds. Exits 1 if there is no question with a record yet.",
    )
    compare.add_argument("--agent", default="", metavar="A", help="the agent (default: the default agent)")
    compare.add_argument("--person", default="", metavar="PERSON", help="only questions of this person")
    compare.add_argument(
        "--limit", type=_parse_number, default=50, metavar="N", help="how many questions (default: 50)"
    )
    resend = memory.add_command(
        "resend",
        "send a memory again what it has received since a given time",
        ("everhold memory resend honcho --since 2h --dry-run", "show how much it received in the last two hours"),
        ("everhold memory resend honcho --since 2026-01-31T12:00", "send it again, in order, under the same keys"),
    )
    resend.add_argument("memory", metavar="NAME", help="a memory from `everhold memory status`")
    resend.add_argument(
        "--since",
        type=_parse_time,
        required=True,
        metavar="WHEN",
        help="the start: a date, a time, or 30m, 2h, 3d ago",
    )
    resend.add_argument("--agent", default="", metavar="A", help="only this agent's sessions")
    resend.add_argument("--dry-run", action="store_true", help="only show how much that is")
    past = memory.add_command(
        "backfill",
        "send a memory the history from before it was attached; without --yes only show how much that is",
        ("everhold memory backfill honcho", "show the number of items and requests, and the duration"),
        ("everhold memory backfill honcho --since 2026-01-01 --yes", "send it; it resumes after a restart"),
    )
    past.add_argument("memory", metavar="NAME", help="a memory from `everhold memory status`")
    past.add_argument("--agent", default="", metavar="A", help="only this agent's sessions")
    past.add_argument("--since", default=0.0, type=_parse_day, metavar="DATE", help="only history since then")
    past.add_argument("--until", default=None, type=_parse_day, metavar="DATE", help="only history before then")
    past.add_argument(
        "--per-minute", default=60, type=_parse_number, metavar="N", help="exchanges and notes per minute (default: 60)"
    )
    past.add_argument("--yes", action="store_true", help="start the backfill")
    rekey = memory.add_command(
        "rekey",
        "move what a memory stores of a person to the name they have there now; without --yes only show how much",
        ("everhold memory rekey honcho --person ada", "show the items, the old and the new peer, and the requests"),
        ("everhold memory rekey honcho --person ada --yes", "move them; it resumes after a restart"),
    )
    rekey.add_argument("memory", metavar="NAME", help="a memory from `everhold memory status`")
    rekey.add_argument("--person", required=True, metavar="PERSON", help="a name, an identity or a person's id")
    rekey.add_argument("--agent", default="", metavar="A", help="only this agent's sessions")
    rekey.add_argument("--yes", action="store_true", help="start the move")


def _add_person_memory_commands(memory: _CommandGroup) -> None:
    forget = memory.add_command(
        "forget",
        "erase a person's data in all logs and memories; without --yes only show what would be erased",
        ("everhold memory forget ada", "show the plan"),
        ("everhold memory forget ada --yes", "erase it; this cannot be undone"),
    )
    forget.add_argument("person", metavar="PERSON", help="a name, or an identity such as telegram:1001")
    forget.add_argument(
        "--yes",
        action="store_true",
        help="do it; exit 0 if every place has confirmed, 75 while one is asked, 1 if one has not confirmed or cannot",
    )
    forget.add_argument(
        "--rebuild",
        action="store_true",
        help="where a memory can delete only whole sessions, store the words of the others anew",
    )
    erasures = memory.add_command(
        "erasures",
        "list the people that were forgotten, with the state of every place",
        ("everhold memory erasures", "exit codes as for `memory forget`"),
        ("everhold memory erasures --accept 3f2a9c01b7de", "show answers of its memories again"),
    )
    erasures.add_argument(
        "--accept",
        default="",
        metavar="ID",
        help="accept what cannot be deleted, or was deleted by hand: the memories may show it again",
    )
    bring = memory.add_command(
        "import",
        "import Markdown into a session, like `everhold import PATH --session ID`",
        ("everhold memory import ~/notes --dry-run", "show what would be imported"),
        ("everhold memory import MEMORY.md --session last", ""),
    )
    bring.add_argument("path", metavar="PATH", help="a file, or a directory of files")
    bring.add_argument("--session", default="last", metavar="ID", help=f"{_ID} (default: last)")
    bring.add_argument("--dry-run", action="store_true", help="only show what would be imported")
    export = memory.add_command(
        "export",
        "export a person's data, as JSON lines and as Markdown",
        ("everhold memory export ada --to usb/ada", ""),
    )
    export.add_argument("person", metavar="PERSON", help="a name, or an identity such as telegram:1001")
    export.add_argument(
        "--to", default=".", metavar="DIR", help="the directory for the files (default: the current one)"
    )


def _add_dead_letter_commands(commands: _CommandGroup) -> None:
    letters = commands.add_group("dead-letters", "list and replay dead letters", module="dead_letters", default="list")
    letters.add_command("list", "list replies and memory writes that were given up, with the reason")
    replay = letters.add_command(
        "replay",
        "send dead letters again",
        ("everhold dead-letters replay", "replay all of them"),
        ("everhold dead-letters replay 3 4", "replay these"),
    )
    replay.add_argument("ids", nargs="*", type=_parse_number, metavar="N", help="ids from `everhold dead-letters list`")


def _add_store_commands(commands: _CommandGroup) -> None:
    store = commands.add_group("store", "move the store to a database server, or back", module="store")
    move = store.add_command(
        "move",
        "move the whole store to a PostgreSQL database, or into a file",
        ("everhold store move --to postgresql://everhold@db.example/everhold", "from the file in the home"),
        ("everhold store move --to ~/.everhold/everhold.db", "back from the configured database"),
        about="Moves sessions, cursors, people, erasures and files. No gateway may run. The copy is compared row by\n"
        "row and audited before it is used; run an interrupted move again. The password of the database is read\n"
        "from EVERHOLD_STORE_PASSWORD.",
    )
    move.add_argument(
        "--to", required=True, metavar="URL|PATH", help="an empty database, or a file that does not exist"
    )


def _add_configuration_commands(commands: _CommandGroup) -> None:
    _add_store_commands(commands)
    _add_setup_commands(
        commands.add_group(
            "setup",
            "configure a model, platform, memory, tools or service and test it",
            module="setup",
            default="model",
        )
    )
    config = commands.add_group("config", "show, check or change the configuration", module="config")
    config.add_command("check", "check the configuration; exit 78 if it is invalid")
    config.add_command("show", "show all settings, with the names of secrets only")
    get = config.add_command("get", "show one value", ("everhold config get agents.main.model", ""))
    get.add_argument("key", metavar="KEY", help="for example agents.main.model or people[0].name")
    change = config.add_command(
        "set",
        "change one value in config.yaml and keep its comments",
        ("everhold config set defaults.budget.usd_per_day 5", ""),
        ("everhold config set agents.coder '{persona: You write code.}'", "a value in YAML"),
    )
    change.add_argument("key", metavar="KEY", help="for example defaults.model")
    change.add_argument("value", metavar="VALUE", help="text, a number, true, or YAML; null unsets")
    parser_data.add_data_commands(commands)
    completion = commands.add_command(
        "completion",
        "print completions for a shell",
        ('eval "$(everhold completion bash)"', "in ~/.bashrc"),
        ("everhold completion fish | source", "in ~/.config/fish/config.fish"),
        module="completion",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    explain = commands.add_command(
        "help", "show the arguments of a command", ("everhold help sessions show", ""), module="help"
    )
    explain.add_argument("words", nargs="*", metavar="COMMAND", help="the words of a command (default: list them all)")


def _add_setup_commands(setup: _CommandGroup) -> None:
    model = setup.add_command(
        "model",
        "choose the default model",
        ("everhold setup model", "ask for all settings"),
        ("everhold setup model --provider offline --no-input", "use the built-in offline model"),
        (
            "everhold setup model --no-input --provider openai --url http://127.0.0.1:11434/v1 --name qwen3",
            "a model on this machine",
        ),
        (
            "everhold setup model --no-input --provider anthropic --name claude-sonnet-5 --key-stdin < key",
            "read the key from a file",
        ),
        about="Asks for the settings that are not given, tests the model with one small request, and writes\n"
        "config.yaml (comments stay) and the key to .env. Writes nothing if the model does not answer. The key is\n"
        "never shown, and is no command line argument because other users could read it there.",
    )
    model.add_argument("--provider", choices=("openai", "anthropic", "offline"), default="", help="the model's API")
    model.add_argument("--url", default="", metavar="URL", help="the base URL (default: the provider's)")
    model.add_argument("--name", default="", metavar="NAME", help="the model's name at the provider")
    model.add_argument(
        "--key-env", default="", metavar="VAR", help="the variable for the key (default: derived from the URL)"
    )
    model.add_argument("--key-stdin", action="store_true", help="read the key from standard input and store it in .env")
    model.add_argument(
        "--as", dest="alias", default="", metavar="NAME", help="the name in `models` (default: provider)"
    )
    model.add_argument("--no-input", action="store_true", help="ask nothing; fail if a setting is missing")
    model.add_argument("--no-test", action="store_true", help="write the configuration without a test")
    for name in ("telegram", "discord", "slack", "matrix"):
        _add_platform_setup(setup, name)
    add_memory_setup(setup)
    add_tool_setup(setup)
    add_service_setup(setup)


def _add_platform_setup(setup: _CommandGroup, name: str) -> None:
    platform = setup.add_command(
        name,
        f"connect an account on {name.capitalize()}",
        (f"everhold setup {name}", "ask for all settings"),
        (f"everhold setup {name} --account coder --agent coder", "add a second account, for another agent"),
        (f"everhold setup {name} --no-input --stdin < secrets", "read the secrets from a file, one per line"),
        about="Asks for the settings that are not given, connects once as a test, and writes config.yaml (comments\n"
        "stay) and the secrets to .env. Writes nothing if the test fails. Secrets are never shown, and are no command\n"
        "line arguments because other users could read them there.",
    )
    platform.add_argument("--account", default="", metavar="NAME", help="the account's name (default: the agent's)")
    platform.add_argument("--agent", default="", metavar="A", help="the agent (default: the default agent)")
    platform.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting")
    platform.add_argument("--stdin", action="store_true", help="read the secrets from standard input, one per line")
    platform.add_argument("--no-input", action="store_true", help="ask nothing; fail if a setting is missing")
    platform.add_argument("--no-test", action="store_true", help="write the configuration without a test")


def _add_name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help=_ID)


# -- values ------------------------------------------------------------------------------------------------------------


def _parse_count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def _parse_compression_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of compressions to score; 0 stands for `auto`."""
    return tuple(0 if part.strip() == "auto" else _parse_number(part.strip()) for part in text.split(","))


def _parse_number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _parse_day(text: str) -> float:
    """Return the timestamp of a date, or of a date with a time, in the local time zone."""
    try:
        return datetime.datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a date (2026-01-31, or 2026-01-31T12:00)") from None


def _parse_time(text: str) -> float:
    """Return the timestamp of a date, a date with a time, or a time span before now."""
    units = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
    ago = re.fullmatch(r"(\d{1,9})([smhdw])", text)
    return time.time() - int(ago[1]) * units[ago[2]] if ago else _parse_day(text)


def _parse_port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def list_commands(parser: argparse.ArgumentParser) -> list[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Return all commands with their words, in the order of the help."""
    found: list[tuple[tuple[str, ...], argparse.ArgumentParser]] = []
    for name, inner in list_subcommands(parser).items():
        deeper = list_commands(inner)
        found += [((name, *words), leaf) for words, leaf in deeper] if deeper else [((name,), inner)]
    return found


def list_subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the direct subcommands of a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def list_options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings]


def list_positionals(parser: argparse.ArgumentParser) -> Sequence[argparse.Action]:
    return [
        action
        for action in parser._actions
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction)
    ]
