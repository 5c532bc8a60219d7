"""The commands by which a past comes in, is looked after, copied and put back: import, doctor, backup, restore."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.cli.parser import _CommandGroup


def add_data_commands(commands: _CommandGroup) -> None:
    bring = commands.add_command(
        "import",
        "bring in a hermes-agent home with its profiles, or a folder of Markdown memory",
        ("everhold import ~/.hermes --dry-run", "what would come, and what would not"),
        ("everhold import ~/.hermes", "conversations, memory files, settings; again later for what is new"),
        ("everhold import notes/ --agent main", "Markdown, as what an agent remembers"),
        ("everhold import MEMORY.md --session last", "Markdown, into a conversation; a running gateway does it"),
        module="import_",
        about="Brings another agent's past in: every message once, with its time; each chat goes on under one\n"
        "session, whatever ids it had there; compressions become summaries whose originals are kept. Platform\n"
        "accounts arrive switched off. Interrupted or run twice, nothing doubles. Nothing at the source is changed,\n"
        "and nothing is sent to memory services: they have it already, or `everhold memory backfill` sends it.",
    )
    bring.add_argument("path", metavar="PATH", help="a hermes-agent home, a state.db, or Markdown")
    bring.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    bring.add_argument("--agent", default="", metavar="A", help="whose memory Markdown becomes (default: main)")
    bring.add_argument(
        "--session", default="", metavar="ID", help="whose Markdown becomes: of those in this session, and its memories"
    )
    doctor = commands.add_command(
        "doctor",
        "what is wrong with a home, and what helps; exit 1 if something is",
        ("everhold doctor", "this home: files, configuration, store, models, memories, disk"),
        ("everhold doctor --fix", "mend what is safe to mend"),
        ("everhold doctor ~/.hermes", "a hermes-agent home with its profiles; nothing is changed"),
        ("everhold doctor ~/.hermes --fix --dry-run", "every change a fix would make"),
        ("everhold doctor ~/.hermes/logs/agent.log", "what its compressions did, from the log"),
        ("everhold doctor --bundle", "a report without texts, ids and keys, for a bug report"),
        module="doctor",
        about="Looks at this home, or at a hermes-agent home, state.db or agent.log, and says what is wrong, where,\n"
        "how much, what was lost and what helps. Reads only, unless --fix is given; then a foreign store is copied\n"
        "and checked first, changed in one transaction, and every change can be taken back.",
    )
    doctor.add_argument(
        "path", nargs="?", default="", metavar="PATH", help="a hermes-agent home, state.db or agent.log"
    )
    doctor.add_argument("--fix", action="store_true", help="mend what can be mended")
    doctor.add_argument("--dry-run", action="store_true", help="with --fix: show every change, and make none")
    doctor.add_argument("--undo", default="", metavar="JOURNAL", help="take back what a fix of PATH did")
    doctor.add_argument("--offline", action="store_true", help="ask no model and no memory service")
    doctor.add_argument(
        "--bundle", nargs="?", const="", default=None, metavar="FILE", help="write a scrubbed report (.tar.gz)"
    )
    backup = commands.add_command(
        "backup",
        "copy the store while it is in use, and check the copy; exit 1 if it is not sound",
        ("everhold backup", "to backups/ in the home; as many are kept as configured"),
        ("everhold backup --to usb/everhold.db", "somewhere else"),
        ("everhold backup --list", "the copies there are"),
        module="backup",
        about="Copies the store while it is in use, opens the copy and audits it. Configuration and secrets are not\n"
        "in it: keep config.yaml and .env yourself. A running gateway makes copies by itself (`backup:` there).",
    )
    backup.add_argument("--to", default="", metavar="FILE", help="where to put it (default: backups/ in the home)")
    backup.add_argument("--list", action="store_true", help="show the copies there are")
    restore = commands.add_command(
        "restore",
        "put a copy of the store back, or go back to an earlier moment",
        ("everhold restore", "what putting back the newest copy would do"),
        ("everhold restore --yes", "do it"),
        ("everhold restore --at 2026-08-01T10:15 --yes", "as it was at that time"),
        ("everhold restore --at 1234 --yes", "as it was at that position of the log"),
        module="restore",
        about="Puts a copy of the store in its place. What is there now is set aside and checked first, the copy is\n"
        "checked before and after, and whatever was erased since is erased again. The gateway must not run. Without\n"
        "--yes nothing is changed.",
    )
    restore.add_argument(
        "source",
        nargs="?",
        default="",
        metavar="FILE",
        help="a file, one of backups/, or `last` (default: what --at needs)",
    )
    restore.add_argument("--at", default="", metavar="TIME|POS", help="go back to a time or a position of the log")
    restore.add_argument("--yes", action="store_true", help="do it")
