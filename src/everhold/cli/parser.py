"""Every command with its arguments, help and examples. The reference page and the completions are made from this."""

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

_ID: Final = "an id, the beginning of one, a title, an address, or `last`"


class CommandParser(argparse.ArgumentParser):
    """Says what is wrong in one line and what helps in another."""

    def error(self, message: str) -> NoReturn:
        wrong = re.fullmatch(r"argument .*: invalid choice: '(.*?)' \(choose from (.*)\)", message)
        remedy = f"`{self.prog} --help` shows what it takes"
        if wrong:
            known = re.findall(r"[\w-]+", wrong[2])
            near = difflib.get_close_matches(wrong[1], known, n=1, cutoff=0.7)
            message = f"there is no {wrong[1]!r} here"
            remedy = f"did you mean `{near[0]}`?" if near else f"there is {', '.join(known)}"
        print(f"{self.prog}: {message}\n  → {remedy}", file=sys.stderr)
        sys.exit(2)


def build_parser() -> CommandParser:
    general = _build_general_options()
    top = CommandParser(
        prog="everhold",
        description="A gateway for long-lived agents. What was accepted is never lost, and memory is delivered.",
        epilog=_format_examples(
            ("everhold chat", "talk, right here; no configuration needed"),
            ("everhold up", "run the gateway; chat, send and status then talk to it"),
            ("everhold audit", "check what everhold promises, on your own data"),
        )
        + "\n\nexit codes: 0 done, 1 found wrong, 2 usage, 75 try again, 78 configuration",
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
    """What works before and after every command."""
    general = CommandParser(add_help=False)
    options = general.add_argument_group("options of every command")
    suppressed: Any = argparse.SUPPRESS  # so that not giving it behind the command leaves what stood before it
    options.add_argument(
        "--home", metavar="DIR", default=suppressed, help="where everything is kept ($EVERHOLD_HOME, ~/.everhold)"
    )
    options.add_argument("--log", choices=("text", "json"), default=suppressed, help="how log lines look")
    options.add_argument("--json", action="store_true", default=suppressed, help="print results as JSON")
    return general


class _CommandGroup:
    """A parser that commands are added to."""

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
        """Commands below a word; `default` is meant when the word stands alone."""
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
        ("everhold up --last-good", "although config.yaml is broken right now"),
        module="up",
        about="Runs the gateway in the foreground. SIGTERM or Ctrl-C gives running turns 30 seconds, a second one\n"
        "stops at once; either way everything resumes at the next start.",
    )
    up.add_argument("--port", type=_parse_port, metavar="N", help="listen here instead of the configured port; 0: any")
    up.add_argument("--last-good", action="store_true", help="start with the configuration that was last in force")
    add_supervision_options(up)
    add_service_commands(commands)


def _add_chat_commands(commands: _CommandGroup) -> None:
    chat = commands.add_command(
        "chat",
        "talk in this terminal",
        ("everhold chat", "go on where you were"),
        ("everhold chat --session work", "a conversation of its own"),
        ("everhold chat --agent coder", "with another agent"),
        module="chat",
        about="Talks through a running gateway if there is one, else by itself. Commands such as /help and /undo are\n"
        "messages like any other. Ctrl-C stops a reply, Ctrl-D leaves; the session stays.",
    )
    chat.add_argument("--session", default="me", metavar="NAME", help=f"name of the chat; or {_ID} (default: me)")
    chat.add_argument("--agent", default="", metavar="A", help="who should answer")
    send = commands.add_command(
        "send",
        "send one message and print the reply",
        ("everhold send 'What did we decide?'", ""),
        ("everhold send --session work --json 'hello'", "with session and entry, for programs"),
        ("echo hello | everhold send -", "from standard input"),
        module="send",
        about="Sends one message and prints the reply. Exits 0 once answered, 75 if the message is kept but was not\n"
        "answered in time: it will be, as soon as a gateway runs.",
    )
    send.add_argument("text", metavar="TEXT", help="what to say; - reads standard input")
    send.add_argument("--session", default="me", metavar="NAME", help=f"name of the chat; or {_ID} (default: me)")
    send.add_argument("--agent", default="", metavar="A", help="who should answer")
    send.add_argument("--id", default="", metavar="ID", help="sent again with the same id, a message counts once")
    send.add_argument(
        "--timeout",
        type=_parse_seconds,
        default=300.0,
        metavar="S",
        help="seconds to wait for the reply (default: 300)",
    )


def _add_inspection_commands(commands: _CommandGroup) -> None:
    status = commands.add_command(
        "status",
        "health at a glance; exit 1 if something is wrong",
        ("everhold status --watch", "again and again"),
        module="status",
    )
    status.add_argument("--watch", action="store_true", help="show it again every two seconds")
    sessions = commands.add_group(
        "sessions", "the log, and the exact context of any turn", module="sessions", default="list"
    )
    listed = sessions.add_command("list", "the newest sessions", ("everhold sessions list --json", ""))
    listed.add_argument("--limit", type=_parse_number, default=50, metavar="N", help="how many (default: 50)")
    shown = sessions.add_command("show", "a session's log", ("everhold sessions show last", ""))
    _add_name_argument(shown)
    shown.add_argument("--after", type=int, default=0, metavar="SEQ", help="only entries behind this one")
    context = sessions.add_command(
        "context",
        "what the model was shown, or would be next",
        ("everhold sessions context last", "what the next turn would be shown"),
        ("everhold sessions context last --at 12", "what was shown for the thought at or behind entry 12"),
    )
    _add_name_argument(context)
    context.add_argument(
        "--at", type=_parse_number, metavar="SEQ", help="the turn that thought at, or next after, this entry"
    )
    _add_name_argument(sessions.add_command("compressions", "list a session's compressions with their summaries"))
    diff = sessions.add_command(
        "diff",
        "what a compression replaced, and with what",
        ("everhold sessions compressions last", "lists them with their numbers"),
        ("everhold sessions diff last --compression 47", ""),
    )
    _add_name_argument(diff)
    diff.add_argument(
        "--compression",
        type=_parse_number,
        required=True,
        metavar="OP",
        help="its number in `everhold sessions compressions`",
    )
    search = sessions.add_command("search", "find what was said", ("everhold sessions search 'dentist tuesday'", ""))
    search.add_argument("text", metavar="TEXT", help="words that must all occur")
    search.add_argument("--limit", type=_parse_number, default=50, metavar="N", help="how many at most (default: 50)")
    export = sessions.add_command(
        "export",
        "a whole session to standard output",
        ("everhold sessions export last > session.jsonl", "every entry, one per line"),
        ("everhold sessions export last --format openai", "messages, as other programs take them"),
        ("everhold sessions export last --format markdown", "the conversation, to read"),
    )
    _add_name_argument(export)
    export.add_argument("--format", choices=("jsonl", "openai", "markdown"), default="jsonl", help="(default: jsonl)")
    audit = commands.add_command(
        "audit",
        "check the eight promises on the store; exit 1 if one is broken",
        ("everhold audit", "everything"),
        ("everhold audit last", "one session"),
        module="audit",
        about="Checks the eight promises on the store and prints the evidence. What is merely doubtful is listed, not\n"
        "hidden.",
    )
    audit.add_argument("id", nargs="?", metavar="ID", help=_ID)
    _add_eval_commands(commands)
    add_plugin_commands(commands)
    commands.add_command("agents", "the agents there are, and what they work with", module="agents")
    _add_people_commands(commands)
    logs = commands.add_command("logs", "the gateway's log lines", ("everhold logs -f", "as they come"), module="logs")
    logs.add_argument("-f", "--follow", action="store_true", help="go on as lines come")
    logs.add_argument(
        "-n", "--lines", type=_parse_number, default=50, metavar="N", help="how many to begin with (default: 50)"
    )


def _add_people_commands(commands: _CommandGroup) -> None:
    pairing = commands.add_group("pairing", "who asks to be let in, and who was", module="pairing", default="list")
    pairing.add_command("list", "who waits with a code, and who was let in by one")
    approve = pairing.add_command(
        "approve",
        "let in whoever was told this code",
        ("everhold pairing approve K7QM-2XWD", ""),
        ("everhold pairing approve K7QM-2XWD --as ada", "and know them as somebody from `people`"),
        about="A stranger who writes to a bot is told a code; they give it to you. It is good for ten minutes and\n"
        "once, for direct messages to that bot. Who may speak in groups stands in config.yaml.",
    )
    approve.add_argument("code", metavar="CODE", help="what they were told")
    approve.add_argument("--as", dest="person", default="", metavar="NAME", help="who it is, a name from `people`")
    revoke = pairing.add_command(
        "revoke", "make somebody a stranger again", ("everhold pairing revoke telegram:1001", "")
    )
    revoke.add_argument("identity", metavar="PLATFORM:ID", help="as `everhold pairing list` shows it")
    people = commands.add_group("people", "who is who across platforms", module="people", default="list")
    people.add_command("list", "everybody known by name, and how they are recognised")
    link = people.add_command("link", "an identity is this person", ("everhold people link telegram:1001 ada", ""))
    link.add_argument("identity", metavar="PLATFORM:ID", help="the platform's id, never a display name")
    link.add_argument("person", metavar="NAME", help="a name from `people`")
    unlink = people.add_command(
        "unlink", "an identity is this person no longer", ("everhold people unlink telegram:1001", "")
    )
    unlink.add_argument("identity", metavar="PLATFORM:ID", help="as `everhold people list` shows it")
    schedules = commands.add_group(
        "schedules", "what is said at its time: made in a chat, by /schedule", module="schedules", default="list"
    )
    schedules.add_command("list", "every schedule, and when it speaks next")
    remove = schedules.add_command(
        "remove", "a schedule that should speak no more", ("everhold schedules remove 4qk2vz", "")
    )
    remove.add_argument("id", metavar="ID", help="as `everhold schedules list` shows it")


def _add_eval_commands(commands: _CommandGroup) -> None:
    evaluate = commands.add_group("eval", "score how much summaries keep", module="eval")
    fidelity = evaluate.add_command(
        "compression",
        "what summaries keep of conversations whose answers are known",
        ("everhold eval compression", "the offline model, on the conversations that come with everhold"),
        ("everhold eval compression --model small", "a model of yours"),
        ("everhold eval compression --agent main --conversations session.jsonl", "on an export of yours"),
        ("everhold eval compression --baseline scores.json", "exit 1 if it keeps less than it did"),
        about="Replays conversations in a store of its own, compresses them, and counts what is left: facts that the\n"
        "next turn is shown, facts a search still finds, size, cost and time. Nothing in the home is touched. Exits 1\n"
        "if a session changed its id, a compression was not made, or a baseline was better.",
    )
    fidelity.add_argument("--agent", default="", metavar="A", help="score the model that writes this agent's summaries")
    fidelity.add_argument("--model", default="", metavar="M", help="score this one of `models`")
    fidelity.add_argument(
        "--conversations", default="", metavar="PATH", help="a file or folder: exports (.jsonl) or texts (.txt)"
    )
    fidelity.add_argument(
        "--compressions",
        type=_parse_compression_counts,
        default=(1, 3),
        metavar="N,…",
        help="how often to compress; `auto`: as configured (default: 1,3)",
    )
    fidelity.add_argument(
        "--keep", type=_parse_count, default=2, metavar="N", help="exchanges that stay word for word (default: 2)"
    )
    fidelity.add_argument("--plot", default="", metavar="FILE", help="draw it, as an SVG")
    fidelity.add_argument("--baseline", default="", metavar="FILE", help="compare with what was kept before")
    fidelity.add_argument("--renew", action="store_true", help="write the baseline instead of comparing with it")


def _add_changing_commands(commands: _CommandGroup) -> None:
    _add_undo_commands(commands)
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
        ("everhold undo last turn -n 3", "the last three"),
        ("everhold undo last compress", "the originals are back"),
        module="undo",
    )
    _add_name_argument(undo)
    undo.add_argument("what", nargs="?", choices=("turn", "compress"), default="turn", help="(default: turn)")
    undo.add_argument(
        "-n", dest="count", type=_parse_number, default=1, metavar="N", help="how many turns (default: 1)"
    )
    _add_name_argument(commands.add_command("stop", "end the turn that is running in a session", module="undo"))


def _add_compress_command(commands: _CommandGroup) -> None:
    compress = commands.add_command(
        "compress",
        "replace the older part of a session's context with a summary",
        ("everhold compress last --preview", "what would be replaced, and what would stay"),
        ("everhold compress last --keep 3", "the last three exchanges stay word for word"),
        ("everhold compress last --focus 'the release plan'", "the summary pays attention to that"),
        module="compress",
        about="Puts a summary in the place of a session's older part, and waits until it is done. The session keeps\n"
        "its id, and nothing is deleted: `everhold undo ID compress` brings the originals back. Exits 1 if the\n"
        "context stayed as it was.",
    )
    _add_name_argument(compress)
    compress.add_argument("--preview", action="store_true", help="say what it would do, and change nothing")
    compress.add_argument("--keep", type=_parse_count, metavar="N", help="exchanges that stay (default: as configured)")
    compress.add_argument("--focus", default="", metavar="TEXT", help="what the summary should pay attention to")


def _add_memory_queries(memory: _CommandGroup) -> None:
    memory.add_command("status", "show each agent's memories: backlog, dead letters, last error")
    search = memory.add_command(
        "search",
        "search an agent's memories for a person",
        ("everhold memory search 'when does the boiler'", "for you"),
        ("everhold memory search tea --person ada --agent coder", ""),
    )
    search.add_argument("text", metavar="TEXT", help="what to look for")
    search.add_argument("--agent", default="", metavar="A", help="whose memory (default: the default agent's)")
    search.add_argument("--person", default="", metavar="NAME", help="for whom (default: you)")
    search.add_argument("--limit", type=_parse_number, default=20, metavar="N", help="at most so many (default: 20)")
    why = memory.add_command(
        "why", "show what an answer rested on, and what was left out", ("everhold memory why last", "")
    )
    why.add_argument("session", nargs="?", default="last", metavar="ID", help=f"{_ID} (default: last)")
    why.add_argument("--at", type=_parse_number, metavar="SEQ", help="the answer at, or last before, this entry")
    note = memory.add_command("note", "remember a fact", ("everhold memory note 'Ada likes tea'", ""))
    note.add_argument("text", metavar="TEXT", help="the fact")
    note.add_argument("--session", default="last", metavar="ID", help=f"{_ID} (default: last)")


def _add_memory_transfers(memory: _CommandGroup) -> None:
    resend = memory.add_command(
        "resend",
        "send a memory again what it received since a time",
        ("everhold memory resend honcho --since 2h --dry-run", "how much it received in the last two hours"),
        ("everhold memory resend honcho --since 2026-01-31T12:00", "send that again, in order, under the same keys"),
    )
    resend.add_argument("memory", metavar="NAME", help="a memory from `everhold memory status`")
    resend.add_argument(
        "--since",
        type=_parse_time,
        required=True,
        metavar="WHEN",
        help="what it received from then on: a date, a time, or 30m, 2h, 3d ago",
    )
    resend.add_argument("--agent", default="", metavar="A", help="only this agent's sessions")
    resend.add_argument("--dry-run", action="store_true", help="only say how much that is")
    past = memory.add_command(
        "backfill",
        "send a memory the history from before it was attached; without --yes only say what that takes",
        ("everhold memory backfill honcho", "how much, how many requests, how long"),
        ("everhold memory backfill honcho --since 2026-01-01 --yes", "resumes by itself after a restart"),
    )
    past.add_argument("memory", metavar="NAME", help="a memory from `everhold memory status`")
    past.add_argument("--agent", default="", metavar="A", help="only this agent's sessions")
    past.add_argument("--since", default=0.0, type=_parse_day, metavar="DATE", help="only what was said from then on")
    past.add_argument("--until", default=None, type=_parse_day, metavar="DATE", help="only what was said before")
    past.add_argument(
        "--per-minute", default=60, type=_parse_number, metavar="N", help="exchanges and notes (default: 60)"
    )
    past.add_argument("--yes", action="store_true", help="begin")


def _add_person_memory_commands(memory: _CommandGroup) -> None:
    forget = memory.add_command(
        "forget",
        "forget a person everywhere; without --yes only say what would be erased",
        ("everhold memory forget ada", "the plan"),
        ("everhold memory forget ada --yes", "what is erased is gone for good"),
    )
    forget.add_argument("person", metavar="PERSON", help="a name, or an identity such as telegram:1001")
    forget.add_argument("--yes", action="store_true", help="do it; exit 1 while a provider has not confirmed")
    bring = memory.add_command(
        "import",
        "the same as `everhold import PATH --session ID`: note what Markdown holds, once",
        ("everhold memory import ~/notes --dry-run", "what would be noted"),
        ("everhold memory import MEMORY.md --session last", ""),
    )
    bring.add_argument("path", metavar="PATH", help="a file, or a folder of them")
    bring.add_argument("--session", default="last", metavar="ID", help=f"{_ID} (default: last)")
    bring.add_argument("--dry-run", action="store_true", help="only say what would be noted")
    export = memory.add_command(
        "export",
        "export everything of a person, as JSON lines and as Markdown",
        ("everhold memory export ada --to usb/ada", ""),
    )
    export.add_argument("person", metavar="PERSON", help="a name, or an identity such as telegram:1001")
    export.add_argument("--to", default=".", metavar="DIR", help="where the files go (default: here)")


def _add_dead_letter_commands(commands: _CommandGroup) -> None:
    letters = commands.add_group(
        "dead-letters", "list and replay what was given up", module="dead_letters", default="list"
    )
    letters.add_command("list", "list replies and memory writes that were given up, with the reason")
    replay = letters.add_command(
        "replay",
        "send dead letters again",
        ("everhold dead-letters replay", "all of them"),
        ("everhold dead-letters replay 3 4", "these"),
    )
    replay.add_argument("ids", nargs="*", type=_parse_number, metavar="N", help="ids from `everhold dead-letters list`")


def _add_configuration_commands(commands: _CommandGroup) -> None:
    _add_setup_commands(
        commands.add_group("setup", "ask, try it live, write the configuration", module="setup", default="model")
    )
    config = commands.add_group("config", "look at the configuration, or change it", module="config")
    config.add_command("check", "is it sound? exit 78 if not")
    config.add_command("show", "everything in force, secrets by name only")
    get = config.add_command("get", "one value", ("everhold config get agents.main.model", ""))
    get.add_argument("key", metavar="KEY", help="for example agents.main.model or people[0].name")
    change = config.add_command(
        "set",
        "change one value in config.yaml; comments stay",
        ("everhold config set defaults.budget.usd_per_day 5", ""),
        ("everhold config set agents.coder '{persona: You write code.}'", "YAML works, too"),
    )
    change.add_argument("key", metavar="KEY", help="for example defaults.model")
    change.add_argument("value", metavar="VALUE", help="text, a number, true, or YAML; null unsets")
    parser_data.add_data_commands(commands)
    completion = commands.add_command(
        "completion",
        "completions for your shell",
        ('eval "$(everhold completion bash)"', "in ~/.bashrc"),
        ("everhold completion fish | source", "in ~/.config/fish/config.fish"),
        module="completion",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    explain = commands.add_command(
        "help", "show what a command takes", ("everhold help sessions show", ""), module="help"
    )
    explain.add_argument("words", nargs="*", metavar="COMMAND", help="the words of a command (default: list them all)")


def _add_setup_commands(setup: _CommandGroup) -> None:
    model = setup.add_command(
        "model",
        "choose the model that answers",
        ("everhold setup model", "asks for everything"),
        ("everhold setup model --provider offline --no-input", "back to the one that needs nothing"),
        (
            "everhold setup model --no-input --provider openai --url http://127.0.0.1:11434/v1 --name qwen3",
            "a model on this machine",
        ),
        (
            "everhold setup model --no-input --provider anthropic --name claude-sonnet-5 --key-stdin < key",
            "the key from a file",
        ),
        about="Asks for what it is not told, tries the model with one small question, and writes config.yaml (its\n"
        "comments stay) and the key to .env; nothing if the model does not answer. The key is never shown, and never\n"
        "taken from the command line, where others could read it.",
    )
    model.add_argument("--provider", choices=("openai", "anthropic", "offline"), default="", help="how it is spoken to")
    model.add_argument(
        "--url", default="", metavar="URL", help="where it answers, if not at the provider's usual place"
    )
    model.add_argument("--name", default="", metavar="NAME", help="the model's name at the provider")
    model.add_argument(
        "--key-env", default="", metavar="VAR", help="the variable for its key (default: by its address)"
    )
    model.add_argument("--key-stdin", action="store_true", help="read the key from standard input, to be kept in .env")
    model.add_argument(
        "--as", dest="alias", default="", metavar="NAME", help="its name in `models` (default: provider)"
    )
    model.add_argument("--no-input", action="store_true", help="ask nothing; what is missing is an error")
    model.add_argument("--no-test", action="store_true", help="write it without having tried it")
    for name in ("telegram", "discord", "slack", "matrix"):
        _add_platform_setup(setup, name)
    add_memory_setup(setup)
    add_service_setup(setup)


def _add_platform_setup(setup: _CommandGroup, name: str) -> None:
    platform = setup.add_command(
        name,
        f"connect an account on {name.capitalize()}",
        (f"everhold setup {name}", "asks for everything"),
        (f"everhold setup {name} --account coder --agent coder", "a second account, for another agent"),
        (f"everhold setup {name} --no-input --stdin < secrets", "the secrets from a file, a line each"),
        about="Asks for what it is not told, connects once to see that it works, and writes config.yaml (its comments\n"
        "stay) and the secrets to .env; nothing if it does not connect. Secrets are never shown, and never taken from\n"
        "the command line, where others could read them.",
    )
    platform.add_argument("--account", default="", metavar="NAME", help="what to call it (default: like the agent)")
    platform.add_argument("--agent", default="", metavar="A", help="who answers there")
    platform.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of its own")
    platform.add_argument("--stdin", action="store_true", help="read the secrets from standard input, a line each")
    platform.add_argument("--no-input", action="store_true", help="ask nothing; what is missing is an error")
    platform.add_argument("--no-test", action="store_true", help="write it without having tried it")


def _add_name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help=_ID)


# -- values ------------------------------------------------------------------------------------------------------------


def _parse_count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return int(text)


def _parse_compression_counts(text: str) -> tuple[int, ...]:
    """How often to compress, several ways; 0 stands for `auto`."""
    return tuple(0 if part.strip() == "auto" else _parse_number(part.strip()) for part in text.split(","))


def _parse_number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _parse_day(text: str) -> float:
    """A date, or a date with a time, as people here count it."""
    try:
        return datetime.datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is no date (2026-01-31, or 2026-01-31T12:00)") from None


def _parse_time(text: str) -> float:
    """A date, a date with a time, or how long ago."""
    units = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
    ago = re.fullmatch(r"(\d{1,9})([smhdw])", text)
    return time.time() - int(ago[1]) * units[ago[2]] if ago else _parse_day(text)


def _parse_port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (0 to 65535)")
    return int(text)


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def list_commands(parser: argparse.ArgumentParser) -> list[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every command with its words, in the order they are listed."""
    found: list[tuple[tuple[str, ...], argparse.ArgumentParser]] = []
    for name, inner in list_subcommands(parser).items():
        deeper = list_commands(inner)
        found += [((name, *words), leaf) for words, leaf in deeper] if deeper else [((name,), inner)]
    return found


def list_subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands directly below a parser."""
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
