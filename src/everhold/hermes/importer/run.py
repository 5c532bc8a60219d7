"""Runs a whole import and reports the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from everhold.app import build_plugin_check
from everhold.config import Settings
from everhold.core import memory_files
from everhold.errors import InvalidRequest, StoreDamaged, StoreError
from everhold.hermes.importer import notes
from everhold.hermes.importer.access import collect_groups
from everhold.hermes.importer.conversations import ImportedConversation, build_conversations
from everhold.hermes.importer.history import ConversationImporter, ImportTally
from everhold.hermes.importer.settings import SettingsImporter, SettingsImportResult
from everhold.hermes.reader import files
from everhold.hermes.reader.database import HermesDatabase
from everhold.hermes.reader.files import HermesProfile
from everhold.hermes.reader.lineage import trace_lineage
from everhold.hermes.reader.transcript import digest_message, read_transcript
from everhold.infra.home import Home
from everhold.stores.sqlite import SqliteStore

T = TypeVar("T")


@dataclass
class ImportReport:
    """What an import did, or would do."""

    source: str
    kind: str
    dry: bool
    agents: dict[str, ImportTally] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """Number of messages in the source, by agent."""
    facts: dict[str, int] = field(default_factory=dict)
    facts_known: int = 0
    settings: SettingsImportResult = field(default_factory=SettingsImportResult)
    before: int = 0
    """The pos of the log before the import: `everhold restore --at` returns to it."""
    troubles: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every message of the source is accounted for."""
        return not self.troubles and all(
            tally.accounted_rows == self.rows.get(agent, 0) for agent, tally in self.agents.items()
        )


@dataclass(frozen=True)
class ImportJob:
    """What to import, and the target. Without a `store` nothing is written."""

    source: Path
    home: Home
    settings: Settings
    environ: Mapping[str, str]
    local: str
    """The local person: the one who used hermes-agent in a terminal."""
    agent: str = ""
    """The agent that receives a directory of Markdown; by default the default agent."""
    store: SqliteStore | None = None
    now: float = 0.0

    def resolve_person(self, platform: str, user: str) -> str:
        return self.settings.identities.get(f"{platform}:{user}") or user or self.local


def is_hermes_source(source: Path) -> bool:
    """Whether `source` is a home of hermes-agent and not a directory of Markdown."""
    return (source.is_file() and source.suffix == ".db") or files.is_hermes_home(source)


async def run_import(job: ImportJob, *, progress: Callable[[int, int], None] = lambda _done, _of: None) -> ImportReport:
    """Import `job.source`. A repeated or resumed import adds nothing twice."""
    source = job.source.expanduser()
    if not source.exists():
        raise InvalidRequest(f"there is no {source}", remedy="name a hermes-agent home, or a folder of Markdown")
    is_foreign = is_hermes_source(source)
    report = ImportReport(str(source), "hermes" if is_foreign else "markdown", dry=job.store is None)
    if job.store is not None:
        report.before = await job.store.last_pos()
    if is_foreign:
        await _import_hermes(job, report, files.find_profiles(source), progress)
    else:
        await _import_markdown(job, report, source)
    return report


async def _import_hermes(
    job: ImportJob, report: ImportReport, found: list[HermesProfile], progress: Callable[[int, int], None]
) -> None:
    names = [profile.name for profile in found]
    if len(set(names)) < len(names):
        raise InvalidRequest(
            f"two profiles would be one agent: {', '.join(sorted(names))}", remedy="rename one of the folders"
        )
    total = sum(_count_rows(profile) for profile in found)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    settler = SettingsImporter(
        job.home, job.settings, environ=job.environ, validate=build_plugin_check(), dry=job.store is None
    )
    for profile in found:
        settler.import_profile(profile, _find_groups(profile))
        tally = report.agents[profile.name] = ImportTally()
        people: list[str] = []
        if profile.database.is_file():
            try:
                filing = settler.named_memories.get(profile.name, [])
                people = await _import_history(job, report, profile, tally, advance, filing)
            except StoreError as error:
                if str(profile.database) not in error.message:
                    raise  # our own store failed, so stop; the next run continues from here
                report.troubles.append(f"{profile.name}: {error}")
        await _import_facts(job, report, profile, people)
    report.settings = settler.done


def _count_rows(profile: HermesProfile) -> int:
    return _query_database(profile, HermesDatabase.count_messages, 0)


def _find_groups(profile: HermesProfile) -> dict[str, set[str]]:
    return _query_database(profile, lambda db: collect_groups(db.read_sessions()), {})


def _query_database(profile: HermesProfile, look: Callable[[HermesDatabase], T], otherwise: T) -> T:
    """Read something from a database that may be missing or damaged. The import itself reports the problem."""
    if not profile.database.is_file():
        return otherwise
    try:
        db = HermesDatabase(profile.database)
        try:
            return look(db)
        finally:
            db.close()
    except StoreError:
        return otherwise


async def _import_history(
    job: ImportJob,
    report: ImportReport,
    profile: HermesProfile,
    tally: ImportTally,
    advance: Callable[[int], None],
    filing: list[str],
) -> list[str]:
    """Import the conversations of one agent; return the people of its direct chats."""
    db = HermesDatabase(profile.database)
    try:
        report.rows[profile.name] = db.count_messages()
        newest = {
            str(id): float(at or 0)
            for id, at in db.query_rows("select session_id, max(timestamp) from messages group by 1")
        }
        found = build_conversations(
            trace_lineage(db.read_sessions(), newest),
            agent=profile.name,
            routing=db.read_routing() or profile.routing,
            person=job.resolve_person,
        )
        historian = None
        if job.store is not None:
            historian = ConversationImporter(
                job.store, db, agent=profile.name, tally=tally, advance=advance, named_memories=filing
            )
        for conversation in found:
            try:
                if historian is None:
                    _preview_conversation(db, conversation, tally, advance)
                else:
                    await historian.import_conversation(conversation)
            except StoreDamaged as error:
                if str(profile.database) not in error.message:
                    raise
                report.troubles.append(f"{profile.name}: session {', '.join(conversation.ids)}: {error}")
        return [it.person for it in found if it.address.kind == "dm"]
    finally:
        db.close()


def _preview_conversation(
    db: HermesDatabase, conversation: ImportedConversation, tally: ImportTally, advance: Callable[[int], None]
) -> None:
    """Count what an import of one conversation would bring, without writing."""
    tally.conversations += 1
    tally.sessions += len(conversation.ids)
    tally.branches += bool(conversation.branch_of)
    for chain in conversation.chains:
        count = 0
        lights = []
        for id in chain.ids:
            for row in db.iter_messages(id):
                lights.append(digest_message(row))
                tally.undone += row.is_undone
                count += 1
        reading = read_transcript(lights)
        tally.messages += len(reading.first)
        tally.copies += len(reading.copies)
        tally.summaries += len(reading.compressions)
        tally.marks += len(reading.marks)
        tally.restored += sum(len(compression.unread) for compression in reading.compressions)
        advance(count)


async def _import_facts(job: ImportJob, report: ImportReport, profile: HermesProfile, people: list[str]) -> None:
    """Import memory files. Their audience is the people with direct chats and the local person."""
    audience = list(dict.fromkeys(f"person:{person}" for person in [job.local, *people]))
    for name in profile.memory_files:
        texts, target = profile.read_memory_entries(name), memory_files.TARGET_BY_FILE.get(name, "memory")
        if job.store is None:
            report.facts[f"{profile.name}: {name}"] = len(texts)
            continue
        done = await notes.import_facts(
            job.store, agent=profile.name, target=target, texts=texts, audience=audience, at=job.now, source=name
        )
        report.facts[f"{profile.name}: {name}"] = done.added
        report.facts_known += done.known


async def _import_markdown(job: ImportJob, report: ImportReport, source: Path) -> None:
    agent = job.settings.get_agent(job.agent).name
    found = notes.read_markdown_entries(source)
    if not found:
        raise InvalidRequest(
            f"{source} holds no Markdown", remedy="name a file or folder with .md files, or a hermes-agent home"
        )
    by_file: dict[str, list[str]] = {}
    for name, passage in found:
        by_file.setdefault(name, []).append(passage)
    for name, texts in by_file.items():
        if job.store is None:
            report.facts[f"{agent}: {name}"] = len(texts)
            continue
        done = await notes.import_facts(
            job.store,
            agent=agent,
            target="memory",
            texts=texts,
            audience=(f"person:{job.local}",),
            at=job.now,
            source=name,
        )
        report.facts[f"{agent}: {name}"] = done.added
        report.facts_known += done.known


def convert_report_to_json(report: ImportReport) -> dict[str, Any]:
    return {
        "source": report.source,
        "kind": report.kind,
        "dry_run": report.dry,
        "complete": report.is_complete,
        "agents": {name: {**vars(tally), "rows": report.rows.get(name, 0)} for name, tally in report.agents.items()},
        "facts": report.facts,
        "facts_known": report.facts_known,
        "settings": vars(report.settings),
        "position_before": report.before,
        "troubles": report.troubles,
    }
