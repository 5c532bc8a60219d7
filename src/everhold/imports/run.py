"""One import from beginning to end: what is there, what it becomes, and a report of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from everhold.app import plugin_check
from everhold.config import Settings
from everhold.core import papers
from everhold.errors import Misuse, StoreDamaged, StoreError
from everhold.hermes import files
from everhold.hermes.database import Database
from everhold.hermes.files import Profile
from everhold.hermes.lineage import lineage
from everhold.hermes.transcript import light, read
from everhold.home import Home
from everhold.imports import notes
from everhold.imports.access import groups
from everhold.imports.conversations import Conversation, conversations
from everhold.imports.history import Historian, Tally
from everhold.imports.settings import Settled, Settler
from everhold.stores.sqlite import SqliteStore

T = TypeVar("T")


@dataclass
class Report:
    """What an import did, or would do."""

    source: str
    kind: str
    dry: bool
    agents: dict[str, Tally] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """Messages there are at the source, by agent."""
    facts: dict[str, int] = field(default_factory=dict)
    facts_known: int = 0
    settings: Settled = field(default_factory=Settled)
    before: int = 0
    """The log's position before it: `everhold restore --at` goes back there."""
    troubles: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every message of the source is accounted for."""
        return not self.troubles and all(
            tally.accounted == self.rows.get(agent, 0) for agent, tally in self.agents.items()
        )


@dataclass(frozen=True)
class Job:
    """What to import, and into what. Without a `store` nothing is written."""

    source: Path
    home: Home
    settings: Settings
    environ: Mapping[str, str]
    local: str
    """Who sits at this machine: whoever spoke in a terminal there."""
    agent: str = ""
    """Whose memory a folder of Markdown becomes; the default agent's if not given."""
    store: SqliteStore | None = None
    now: float = 0.0

    def person(self, platform: str, user: str) -> str:
        return self.settings.identities.get(f"{platform}:{user}") or user or self.local


def foreign(source: Path) -> bool:
    """Whether `source` is another system's home, and not a folder of Markdown."""
    return (source.is_file() and source.suffix == ".db") or files.looks_like(source)


async def run(job: Job, *, progress: Callable[[int, int], None] = lambda _done, _of: None) -> Report:
    """Import `job.source`. Twice, or interrupted and run again, nothing doubles."""
    source = job.source.expanduser()
    if not source.exists():
        raise Misuse(f"there is no {source}", remedy="name a hermes-agent home, or a folder of Markdown")
    is_foreign = foreign(source)
    report = Report(str(source), "hermes" if is_foreign else "markdown", dry=job.store is None)
    if job.store is not None:
        report.before = await job.store.last_pos()
    if is_foreign:
        await _hermes(job, report, files.profiles(source), progress)
    else:
        await _markdown(job, report, source)
    return report


async def _hermes(job: Job, report: Report, found: list[Profile], progress: Callable[[int, int], None]) -> None:
    names = [profile.name for profile in found]
    if len(set(names)) < len(names):
        raise Misuse(f"two profiles would be one agent: {', '.join(sorted(names))}", remedy="rename one of the folders")
    total = sum(_rows(profile) for profile in found)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    settler = Settler(job.home, job.settings, environ=job.environ, validate=plugin_check(), dry=job.store is None)
    for profile in found:
        settler.carry(profile, _groups(profile))
        tally = report.agents[profile.name] = Tally()
        people: list[str] = []
        if profile.database.is_file():
            try:
                filing = settler.filing.get(profile.name, [])
                people = await _history(job, report, profile, tally, advance, filing)
            except StoreError as error:
                if str(profile.database) not in error.message:
                    raise  # our own store: nothing more can be written, and the next run goes on from here
                report.troubles.append(f"{profile.name}: {error}")
        await _facts(job, report, profile, people)
    report.settings = settler.done


def _rows(profile: Profile) -> int:
    return _glance(profile, Database.count, 0)


def _groups(profile: Profile) -> dict[str, set[str]]:
    return _glance(profile, lambda db: groups(db.sessions()), {})


def _glance(profile: Profile, look: Callable[[Database], T], otherwise: T) -> T:
    """Something about a database that may not be there, or not read; that is told when it is imported."""
    if not profile.database.is_file():
        return otherwise
    try:
        db = Database(profile.database)
        try:
            return look(db)
        finally:
            db.close()
    except StoreError:
        return otherwise


async def _history(
    job: Job, report: Report, profile: Profile, tally: Tally, advance: Callable[[int], None], filing: list[str]
) -> list[str]:
    """Bring the conversations of one agent in; the people of its direct chats."""
    db = Database(profile.database)
    try:
        report.rows[profile.name] = db.count()
        newest = {
            str(id): float(at or 0) for id, at in db.rows("select session_id, max(timestamp) from messages group by 1")
        }
        found = conversations(
            lineage(db.sessions(), newest),
            agent=profile.name,
            routing=db.routing() or profile.routing,
            person=job.person,
        )
        historian = None
        if job.store is not None:
            historian = Historian(job.store, db, agent=profile.name, tally=tally, advance=advance, filing=filing)
        for conversation in found:
            try:
                if historian is None:
                    _look(db, conversation, tally, advance)
                else:
                    await historian.write(conversation)
            except StoreDamaged as error:
                if str(profile.database) not in error.message:
                    raise
                report.troubles.append(f"{profile.name}: session {', '.join(conversation.ids)}: {error}")
        return [it.person for it in found if it.address.kind == "dm"]
    finally:
        db.close()


def _look(db: Database, conversation: Conversation, tally: Tally, advance: Callable[[int], None]) -> None:
    """What an import of one conversation would bring, without writing."""
    tally.conversations += 1
    tally.sessions += len(conversation.ids)
    tally.branches += bool(conversation.branch_of)
    for chain in conversation.chains:
        count = 0
        lights = []
        for id in chain.ids:
            for row in db.messages(id):
                lights.append(light(row))
                tally.undone += row.undone
                count += 1
        reading = read(lights)
        tally.messages += len(reading.first)
        tally.copies += len(reading.copies)
        tally.summaries += len(reading.folds)
        tally.marks += len(reading.marks)
        tally.restored += sum(len(fold.unread) for fold in reading.folds)
        advance(count)


async def _facts(job: Job, report: Report, profile: Profile, people: list[str]) -> None:
    """Memory files, for those who talked with the agent in private and whoever sits here: nobody else heard of them."""
    audience = list(dict.fromkeys(f"person:{person}" for person in [job.local, *people]))
    for name in profile.memory_files:
        texts, target = profile.memory(name), papers.TARGETS.get(name, "memory")
        if job.store is None:
            report.facts[f"{profile.name}: {name}"] = len(texts)
            continue
        done = await notes.remember(
            job.store, agent=profile.name, target=target, texts=texts, audience=audience, at=job.now, source=name
        )
        report.facts[f"{profile.name}: {name}"] = done.new
        report.facts_known += done.known


async def _markdown(job: Job, report: Report, source: Path) -> None:
    agent = job.settings.agent(job.agent).name
    found = notes.from_markdown(source)
    if not found:
        raise Misuse(
            f"{source} holds no Markdown", remedy="name a file or folder with .md files, or a hermes-agent home"
        )
    by_file: dict[str, list[str]] = {}
    for name, passage in found:
        by_file.setdefault(name, []).append(passage)
    for name, texts in by_file.items():
        if job.store is None:
            report.facts[f"{agent}: {name}"] = len(texts)
            continue
        done = await notes.remember(
            job.store,
            agent=agent,
            target="memory",
            texts=texts,
            audience=(f"person:{job.local}",),
            at=job.now,
            source=name,
        )
        report.facts[f"{agent}: {name}"] = done.new
        report.facts_known += done.known


def report_json(report: Report) -> dict[str, Any]:
    return {
        "source": report.source,
        "kind": report.kind,
        "dry_run": report.dry,
        "complete": report.complete,
        "agents": {name: {**vars(tally), "rows": report.rows.get(name, 0)} for name, tally in report.agents.items()},
        "facts": report.facts,
        "facts_known": report.facts_known,
        "settings": vars(report.settings),
        "position_before": report.before,
        "troubles": report.troubles,
    }
