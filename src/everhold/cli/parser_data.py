"""Arguments, help and examples of the commands for a home's data: import, doctor, backup, restore."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.cli.parser import _CommandGroup


def add_data_commands(commands: _CommandGroup) -> None:
    _add_import_command(commands)
    _add_doctor_command(commands)
    _add_backup_commands(commands)


def _add_import_command(commands: _CommandGroup) -> None:
    bring = commands.add_command(
        "import",
        "import a hermes-agent home with its profiles, or a directory of Markdown memory",
        ("everhold import ~/.hermes --dry-run", "show what would be imported and what would not"),
        ("everhold import ~/.hermes", "import conversations, memory files and settings; repeat it for new ones"),
        ("everhold import ~/.hermes --owner telegram:1001", "the memory files are about this person"),
        ("everhold import notes/ --agent main", "import Markdown as an agent's facts"),
        ("everhold import MEMORY.md --session last", "import Markdown into a session; a gateway may run"),
        module="import_",
        about="Imports the history of another agent: each message once, with its time. Each chat continues in one\n"
        "session, whatever ids it had before. Compressions become summaries whose originals are kept. Platform\n"
        "accounts are imported as disabled. A repeated or interrupted import creates no duplicates. The source is\n"
        "not changed. Nothing is sent to memory services, because they have it already; if they do not, use\n"
        "`everhold memory backfill`. Memory files become facts for one person alone. If it is not clear for whom,\n"
        "they are left out, and the exit code is 1. A dry run imports into a temporary copy, so its numbers are\n"
        "exact. Symbolic links are not followed.",
    )
    bring.add_argument("path", metavar="PATH", help="a hermes-agent home, a state.db, or Markdown")
    bring.add_argument("--dry-run", action="store_true", help="show what would be done, and change nothing")
    bring.add_argument("--agent", default="", metavar="A", help="the agent that gets the Markdown (default: main)")
    bring.add_argument(
        "--owner",
        default="",
        metavar="NAME",
        help="whom the memory files are about: an identity (telegram:1001), or a known person's name",
    )
    bring.add_argument(
        "--session", default="", metavar="ID", help="import Markdown for the people and memories of this session"
    )


def _add_doctor_command(commands: _CommandGroup) -> None:
    doctor = commands.add_command(
        "doctor",
        "find problems of a home, with remedies; exit 1 if there are any",
        ("everhold doctor", "check this home: files, configuration, store, models, memories, disk"),
        ("everhold doctor --fix", "fix what can be fixed safely"),
        ("everhold doctor ~/.hermes", "check a hermes-agent home with its profiles, and change nothing"),
        ("everhold doctor ~/.hermes --fix --dry-run", "show every change that a fix would make"),
        ("everhold doctor ~/.hermes/logs/agent.log", "check its compressions, from its log"),
        ("everhold doctor --bundle", "write a report without texts, ids and keys, for a bug report"),
        module="doctor",
        about="Checks this home, or a hermes-agent home, state.db or agent.log, and prints each problem with its\n"
        "place, size, loss and remedy. It only reads, unless --fix is given. A fix of hermes-agent's store first\n"
        "makes and checks a copy, then changes the store in one transaction, which can be undone.",
    )
    doctor.add_argument(
        "path", nargs="?", default="", metavar="PATH", help="a hermes-agent home, state.db or agent.log"
    )
    doctor.add_argument("--fix", action="store_true", help="fix what can be fixed")
    doctor.add_argument("--dry-run", action="store_true", help="with --fix: show every change, and make none")
    doctor.add_argument("--undo", default="", metavar="JOURNAL", help="undo a fix of PATH")
    doctor.add_argument("--offline", action="store_true", help="call no model and no memory service")
    doctor.add_argument(
        "--bundle",
        nargs="?",
        const="",
        default=None,
        metavar="FILE",
        help="write a report without private data (.tar.gz)",
    )


def _add_backup_commands(commands: _CommandGroup) -> None:
    backup = commands.add_command(
        "backup",
        "copy the store while it is in use, and check the copy; exit 1 if it is not sound",
        ("everhold backup", "copy to backups/ in the home; the configured number is kept"),
        ("everhold backup --to usb/everhold.db", "copy to another file"),
        ("everhold backup --list", "list the backups"),
        module="backup",
        about="Copies the store while it is in use, opens the copy and audits it. The copy does not contain the\n"
        "configuration and secrets, so back up config.yaml and .env yourself. A running gateway makes backups by\n"
        "itself (`backup:` in config.yaml).",
    )
    backup.add_argument("--to", default="", metavar="FILE", help="the file for the copy (default: in backups/)")
    backup.add_argument("--list", action="store_true", help="list the backups")
    restore = commands.add_command(
        "restore",
        "restore the store from a backup, or go back to an earlier time",
        ("everhold restore", "show what restoring the newest backup would do"),
        ("everhold restore --yes", "do it"),
        ("everhold restore --at 2026-08-01T10:15 --yes", "restore the state at that time"),
        ("everhold restore --at 1234 --yes", "restore the state at that pos of the log"),
        module="restore",
        about="Replaces the store with a backup. The present store is moved aside and checked first, the backup is\n"
        "checked before and after, and entries that were erased since are erased again. The gateway must not run.\n"
        "Without --yes nothing is changed.",
    )
    restore.add_argument(
        "source",
        nargs="?",
        default="",
        metavar="FILE",
        help="a file, the name of a backup, or `last` (default: the backup that --at needs)",
    )
    restore.add_argument("--at", default="", metavar="TIME|POS", help="go back to a time or a pos of the log")
    restore.add_argument("--yes", action="store_true", help="do it")
