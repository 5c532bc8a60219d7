"""Runs a whole import and reports the result."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from everhold.app import SystemRandomSource, build_plugin_check
from everhold.assembly import stores
from everhold.assembly.skill_library import SkillLibrary
from everhold.config import Settings
from everhold.core import memory_files
from everhold.core.people import LOCAL_IDENTITIES, PeopleDirectory, PeoplePlanner, plan_configured_people
from everhold.core.wording import describe_count
from everhold.engine.state_updates import plan_people_update, update_people
from everhold.errors import InvalidRequest, StoreError
from everhold.hermes.importer import access, notes
from everhold.hermes.importer.conversations import ImportedConversation, build_conversations
from everhold.hermes.importer.cron_jobs import import_jobs
from everhold.hermes.importer.history import ConversationImporter, ImportTally
from everhold.hermes.importer.leftovers import list_leftovers
from everhold.hermes.importer.owner import choose_owner, group_candidates
from everhold.hermes.importer.peers import resolve_peers
from everhold.hermes.importer.people import is_unknown, list_senders, plan_people
from everhold.hermes.importer.settings import SettingsImporter, SettingsImportResult
from everhold.hermes.importer.skills import import_skills
from everhold.hermes.reader import files
from everhold.hermes.reader.database import HermesDatabase
from everhold.hermes.reader.files import HermesProfile
from everhold.hermes.reader.lineage import trace_lineage
from everhold.infra.home import Home
from everhold.ingress.people import list_configured_people
from everhold.ports.clock import RandomSource
from everhold.ports.store import Change, PeerRecord, Step, Store

MAX_NAMED: Final = 5
"""How many examples a line of the report names."""
_IMPORTER: Final = "import"


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
    facts_moved: int = 0
    """Entries of memory files that an earlier import had given to another person."""
    owner: str = ""
    """The identity to which the memory files belong; empty if several people could be meant."""
    candidates: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    """What to run to import the memory files that were left out."""
    peers: list[str] = field(default_factory=list)
    settings: SettingsImportResult = field(default_factory=SettingsImportResult)
    skills: list[str] = field(default_factory=list)
    schedules: list[str] = field(default_factory=list)
    """What was made of cron jobs. All of them are paused."""
    left_behind: list[str] = field(default_factory=list)
    """What has no place here, and the reason."""
    before: int = 0
    """The pos of the log before the import: `everhold restore --at` returns to it."""
    troubles: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every message of the source is accounted for, and nothing was refused."""
        return (
            not self.troubles
            and not self.settings.refused
            and all(tally.accounted_rows == self.rows.get(agent, 0) for agent, tally in self.agents.items())
        )


@dataclass(frozen=True)
class ImportJob:
    """What to import, and the target. Without a `store` it is a dry run: the import goes into a temporary copy."""

    source: Path
    home: Home
    settings: Settings
    environ: Mapping[str, str]
    local: str
    """The local user: the one who used hermes-agent in a terminal."""
    agent: str = ""
    """The agent that receives a directory of Markdown; by default the default agent."""
    store: Store | None = None
    now: float = 0.0
    owner: str = ""
    """To whom the memory files belong: an identity, or a person's name. Empty: the only person there is."""
    chance: RandomSource = field(default_factory=SystemRandomSource)

    @property
    def local_identity(self) -> str:
        return f"{LOCAL_IDENTITIES}:{self.local}"


@dataclass
class _ProfilePlan:
    """What was found in one profile before anything is written."""

    profile: HermesProfile
    conversations: list[ImportedConversation] = field(default_factory=list)
    groups: dict[str, set[str]] = field(default_factory=dict)
    rows: int = 0


@dataclass
class _ImportRun:
    """One import in progress. In a dry run `store` is a temporary copy, so the numbers are those of the import."""

    job: ImportJob
    store: Store
    report: ImportReport
    settler: SettingsImporter


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
    async with _open_target(job) as store:
        settler = SettingsImporter(
            job.home, job.settings, environ=job.environ, validate=build_plugin_check(), dry=report.dry
        )
        run = _ImportRun(job, store, report, settler)
        if not report.dry:
            report.before = await store.last_pos()
        if is_foreign:
            await _import_hermes(run, files.find_profiles(source), progress)
        else:
            await _import_markdown(run, source)
    report.settings = settler.done
    return report


@asynccontextmanager
async def _open_target(job: ImportJob) -> AsyncIterator[Store]:
    """Open the store to write to: the home's, or for a dry run a temporary copy of it."""
    if job.store is not None:
        yield job.store
        return
    with tempfile.TemporaryDirectory(prefix="everhold-dry-run-") as folder:
        path = Path(folder) / job.home.store.name
        if job.home.store.exists():
            stores.copy_store_file(job.home.store, path)
        store = stores.open_temporary_store(path, chance=job.chance)
        try:
            yield store
        finally:
            await store.close()


# -- a home ------------------------------------------------------------------------------------------------------------


async def _import_hermes(run: _ImportRun, found: list[HermesProfile], progress: Callable[[int, int], None]) -> None:
    job, report = run.job, run.report
    plans = [_read_plan(run, profile) for profile in _select_profiles(found, report)]
    total = sum(plan.rows for plan in plans)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    directory = await _apply_configured_people(run)
    report.candidates = group_candidates(_list_candidates(plans), directory)
    report.owner = choose_owner(job.owner, report.candidates, directory=directory, local=job.local_identity)
    await _record_people(run, plans)
    directory = await run.store.get_people()
    for plan in plans:
        profile = plan.profile
        run.settler.import_profile(
            profile, plan.groups, senders=list_senders(plan.conversations), is_same=directory.is_same_person
        )
        tally = report.agents[profile.name] = ImportTally()
        report.rows[profile.name] = plan.rows
        tally.remarks += _describe_unknown(plan.conversations)
        if plan.conversations:
            try:
                await _import_history(run, plan, tally, advance)
            except StoreError as error:
                if str(profile.database) not in error.message:
                    raise  # our own store failed, so stop; the next run continues from here
                report.troubles.append(f"{profile.name}: {error}")
        await _record_peers(run, plan, directory)
        await _import_facts(run, profile)
        await _import_automation(run, plan)
        report.left_behind += list_leftovers(profile)
        report.troubles += [f"{profile.name}: {name}: {why}" for name, why in profile.list_refused().items()]
    _explain_left_facts(run)


def _select_profiles(found: Sequence[HermesProfile], report: ImportReport) -> list[HermesProfile]:
    """Return the profiles with a name of their own."""
    kept: dict[str, HermesProfile] = {}
    for profile in found:
        other = kept.setdefault(profile.name, profile)
        if other is not profile:
            report.troubles.append(
                f"{profile.path.name}: it would be the same agent as {other.path.name}; rename one of the folders"
            )
    return list(kept.values())


def _read_plan(run: _ImportRun, profile: HermesProfile) -> _ProfilePlan:
    """Read the sessions of a profile. A database that cannot be read is reported, and the rest is imported."""
    plan = _ProfilePlan(profile)
    if not profile.has_database():
        return plan
    try:
        db = HermesDatabase(profile.database)
        try:
            sessions = db.read_sessions()
            plan.conversations = build_conversations(
                trace_lineage(sessions, db.read_newest_times()),
                agent=profile.name,
                routing=db.read_routing() or profile.routing,
                local=run.job.local,
            )
            run.report.troubles += [f"{profile.name}: {line}" for line in db.list_unreadable()]
            plan.groups = access.collect_groups(plan.conversations)
            plan.rows = db.count_messages()
            if undated := db.count_undated():
                run.report.left_behind.append(f"{profile.name}: the times of {undated} messages: they are not numbers")
        finally:
            db.close()
    except (StoreError, InvalidRequest) as error:
        run.report.troubles.append(f"{profile.name}: {error}")
    return plan


def _list_candidates(plans: Sequence[_ProfilePlan]) -> list[str]:
    """Return the people that the memory files may be about: those of direct chats and of allow lists."""
    found: set[str] = set()
    for plan in plans:
        chats = {it.identity for it in plan.conversations if it.address.kind == "dm" and not is_unknown(it.identity)}
        found |= chats | access.list_allowed(plan.profile, chats)
    return sorted(found)


# -- people ------------------------------------------------------------------------------------------------------------


async def _apply_configured_people(run: _ImportRun) -> PeopleDirectory:
    """Record the people of the configuration, so that imported identities of theirs are theirs."""
    people = list_configured_people(run.job.settings, local_user=run.job.local)
    await plan_people_update(
        run.store,
        chance=run.job.chance,
        at=run.job.now,
        plan=lambda directory, new_id, at: plan_configured_people(directory, people, new_id=new_id, at=at),
    )
    return await run.store.get_people()


async def _record_people(run: _ImportRun, plans: Sequence[_ProfilePlan]) -> None:
    conversations = [conversation for plan in plans for conversation in plan.conversations]
    directory = await run.store.get_people()
    remarks: list[str] = []

    def plan(planner: PeoplePlanner) -> None:
        remarks[:] = plan_people(planner, conversations, run.report.owner, directory=directory)

    await update_people(run.store, chance=run.job.chance, at=run.job.now, by=_IMPORTER, plan=plan)
    run.report.left_behind += remarks


def _describe_unknown(conversations: Sequence[ImportedConversation]) -> list[str]:
    """Return a line for conversations that belong to nobody until they are linked."""
    lines = []
    for shared, reason in ((False, "have no sender's id"), (True, "are shared, and their rows do not say who spoke")):
        found = [
            it.identity
            for it in conversations
            if is_unknown(it.identity) and shared is any(chat.is_shared for chat in it.chats)
        ]
        if found:
            named = ", ".join(found[:MAX_NAMED]) + (", …" if len(found) > MAX_NAMED else "")
            lines.append(f"{len(found)} conversations {reason}, so they belong to no person ({named})")
    return lines


async def _record_peers(run: _ImportRun, plan: _ProfilePlan, directory: PeopleDirectory) -> None:
    """Record under which names the memory services know the people. A name that was recorded before is kept."""
    senders = list_senders(plan.conversations)
    for use in run.settler.services.get(plan.profile.name, ()):
        known = {it.identity: it for it in await run.store.list_peers(memory=use.memory, agent=use.agent)}
        found = resolve_peers(use, senders, is_same=directory.is_same_person)
        new = tuple(peer for peer in found if peer.identity not in known)
        if new:
            await run.store.commit(Change(step=Step.PEOPLE, session="", at=run.job.now, peers=new))
        run.report.peers += [_describe_peer(peer) for peer in found]


def _describe_peer(peer: PeerRecord) -> str:
    line = f"{peer.memory}: {peer.identity} → {peer.peer}"
    if not peer.shared:
        return line
    return (
        f"{line} (several people share it, so it is recalled for nobody: "
        f"everhold people peer {peer.memory} {shlex.quote(peer.peer)} --to IDENTITY)"
    )


# -- conversations and memory files ------------------------------------------------------------------------------------


async def _import_history(
    run: _ImportRun, plan: _ProfilePlan, tally: ImportTally, advance: Callable[[int], None]
) -> None:
    profile, report = plan.profile, run.report
    db = HermesDatabase(profile.database)
    named = run.settler.named_memories.get(profile.name, [])
    historian = ConversationImporter(
        run.store, db, agent=profile.name, tally=tally, advance=advance, named_memories=named
    )
    try:
        for conversation in plan.conversations:
            try:
                await historian.import_conversation(conversation)
            except StoreError as error:
                if str(profile.database) not in error.message:
                    raise
                report.troubles.append(f"{profile.name}: session {', '.join(conversation.ids)}: {error}")
    finally:
        db.close()
    report.troubles += [
        f"{profile.name}: message {row} of session {session}: a value of {size:,} bytes is too large and was left out"
        for row, (session, size) in sorted(db.oversized.items())
    ]
    report.troubles += [f"{profile.name}: {line}" for line in db.undecodable]


async def _import_facts(run: _ImportRun, profile: HermesProfile) -> None:
    """Import memory files as facts for the owner alone. Without an owner, count what is left out."""
    report = run.report
    for name in profile.memory_files:
        texts, target = profile.read_memory_entries(name), memory_files.TARGET_BY_FILE.get(name, "memory")
        place = f"{profile.name}: {name}"
        if not report.owner:
            left = await notes.count_unknown(run.store, agent=profile.name, target=target, texts=texts)
            report.facts[place] = 0
            report.facts_known += len(texts) - left
            if left:
                report.left_behind.append(
                    f"{place}: {describe_count(left, 'entry', 'entries')}, because it is unknown whom they are about"
                )
                report.commands = [_build_owner_command(run, identity) for identity in report.candidates]
            continue
        done = await notes.import_facts(
            run.store,
            agent=profile.name,
            target=target,
            texts=texts,
            owner=report.owner,
            at=run.job.now,
            source=name,
            moves=bool(run.job.owner),
        )
        report.facts[place] = done.added
        report.facts_known += done.known
        report.facts_moved += done.moved


async def _import_automation(run: _ImportRun, plan: _ProfilePlan) -> None:
    """Import the skills of an agent, and its cron jobs as paused schedules."""
    job, report, profile = run.job, run.report, plan.profile
    skills = import_skills(profile, SkillLibrary(job.home.path), dry=report.dry)
    jobs = await import_jobs(run.store, profile, plan.conversations, at=job.now, zone=job.settings.zone)
    report.skills += skills.copied
    report.schedules += jobs.made
    report.left_behind += [f"{profile.name}: {line}" for line in (*skills.left, *jobs.left)]


def _build_owner_command(run: _ImportRun, identity: str) -> str:
    return f"everhold import {shlex.quote(str(run.job.source))} --owner {shlex.quote(identity)}"


def _explain_left_facts(run: _ImportRun) -> None:
    if run.report.commands:
        run.report.troubles.append(
            "the memory files were left out, because several people could be meant; name the one they are about"
        )


async def _import_markdown(run: _ImportRun, source: Path) -> None:
    job, report = run.job, run.report
    agent = job.settings.get_agent(job.agent).name
    found, persona, refused = notes.read_markdown_entries(source)
    report.troubles += [f"{name}: {why}" for name, why in refused.items()]
    if not found and not persona and not refused:
        raise InvalidRequest(
            f"{source} holds no Markdown", remedy="name a file or folder with .md files, or a hermes-agent home"
        )
    directory = await _apply_configured_people(run)
    report.owner = choose_owner(job.owner, (), directory=directory, local=job.local_identity)
    await _record_people(run, ())
    if persona:
        run.settler.import_persona(agent, persona)
    by_file: dict[str, list[str]] = {}
    for name, passage in found:
        by_file.setdefault(name, []).append(passage)
    for name, texts in by_file.items():
        done = await notes.import_facts(
            run.store,
            agent=agent,
            target="memory",
            texts=texts,
            owner=report.owner,
            at=job.now,
            source=name,
            moves=bool(job.owner),
        )
        report.facts_moved += done.moved
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
        "facts_moved": report.facts_moved,
        "owner": report.owner,
        "owner_candidates": report.candidates,
        "commands": report.commands,
        "peers": report.peers,
        "skills": report.skills,
        "schedules": report.schedules,
        "settings": vars(report.settings),
        "left_behind": report.left_behind,
        "position_before": report.before,
        "troubles": report.troubles,
    }
