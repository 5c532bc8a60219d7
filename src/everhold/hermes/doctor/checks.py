"""Examines a home of hermes-agent, its `state.db` or its `agent.log`. It changes nothing; `repair` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from everhold.doctor.finding import DoctorFinding, StoreEdit
from everhold.errors import InvalidRequest, StoreDamaged
from everhold.hermes.doctor import chains, routing
from everhold.hermes.doctor.case import HermesInspection
from everhold.hermes.reader import agent_log, files
from everhold.hermes.reader.database import HermesDatabase

_ODDITY_TEXTS: Final = {
    "renamed": "a compression of session {0} ended under another id, {1}",
    "foreign": "a compression of session {0} was logged under session {1}",
    "unbegun": "a compression of session {0} ended without having started",
    "overlapping": "a compression of session {0} started while another of it was running",
    "unended": "a compression of session {0} started and never ended",
}
_ODDITY_LOSSES: Final = {
    "renamed": "messages written to the old id are not read",
    "overlapping": "the result of one may have replaced the result of the other",
    "unended": "the process may have died there, with the message that started it",
}


@dataclass
class HermesReport:
    """What was examined, and the findings."""

    path: str
    kind: str
    """`store` or `log`"""
    agent: str = ""
    version: int = 0
    sessions: int = 0
    messages: int = 0
    findings: list[DoctorFinding] = field(default_factory=list)

    @property
    def has_problems(self) -> bool:
        return any(finding.level == "wrong" for finding in self.findings)


def examine_path(path: Path, *, now: float) -> list[HermesReport]:
    """Examine everything at `path`: a home with its profiles, a database, or a log."""
    path = path.expanduser()
    if not path.exists():
        raise InvalidRequest(f"there is no {path}", remedy="name a home, a state.db or an agent.log")
    if path.is_file():
        return [examine_store(path, now=now)] if _is_database(path) else [examine_log(path)]
    found = []
    for profile in files.find_profiles(path):
        if profile.database.is_file():
            found.append(examine_store(profile.database, now=now, agent=profile.name, mirror=profile.routing))
        if profile.log.is_file():
            report = examine_log(profile.log, agent=profile.name)
            if found and found[-1].kind == "store" and not found[-1].has_problems:
                # the damage that the log reports is not in the store (any more)
                report.findings = [replace(finding, level="note") for finding in report.findings]
            found.append(report)
    if not found:
        raise InvalidRequest(f"{path} has neither a state.db nor logs/agent.log", remedy="check the path")
    return found


def examine_store(
    path: Path, *, now: float, agent: str = files.MAIN_AGENT, mirror: Mapping[str, dict[str, Any]] | None = None
) -> HermesReport:
    """Return the findings about one `state.db`."""
    report = HermesReport(str(path), "store", agent=agent)
    try:
        db = HermesDatabase(path)
    except StoreDamaged as error:
        check = "schema" if "malformed database schema" in error.message else "pages"
        lost = (
            "nothing yet, because the schema of the database cannot be read"
            if check == "schema"
            else "everything in it"
        )
        report.findings = [DoctorFinding(check, error.message, where=(str(path),), lost=lost, remedy=error.remedy)]
        return report
    try:
        report.findings = list(routing.check_file(db))
        if not report.findings:  # queries through a wrong index would return wrong results
            case = HermesInspection(db, now=now, mirror=mirror)
            report.version, report.sessions, report.messages = (
                db.schema_version,
                len(case.sessions),
                db.count_messages(),
            )
            report.findings = collect_findings(case)
    except StoreDamaged as error:
        report.findings.append(DoctorFinding("pages", error.message, where=(str(path),), remedy=error.remedy))
    finally:
        db.close()
    return report


def collect_findings(case: HermesInspection) -> list[DoctorFinding]:
    return [
        _fit_to_schema(finding, case.columns) for finding in (*routing.check_places(case), *chains.check_chains(case))
    ]


def _fit_to_schema(finding: DoctorFinding, columns: Mapping[str, set[str]]) -> DoctorFinding:
    """Remove fixes that set columns which an older schema does not have."""
    edits: list[StoreEdit] = []
    for edit in finding.edits:
        there = columns.get(edit.table)
        values = edit.values if there is None else tuple(pair for pair in edit.values if pair[0] in there)
        if edit.values and not values:
            gone = ", ".join(name for name, _ in edit.values)
            return replace(finding, edits=(), remedy=f"this schema has no {gone}; an import corrects it")
        edits.append(replace(edit, values=values))
    return replace(finding, edits=tuple(edits))


def examine_log(path: Path, *, agent: str = files.MAIN_AGENT) -> HermesReport:
    """Return the findings about compressions in an `agent.log`."""
    summary = agent_log.summarize_compressions(agent_log.read_compression_lines(path))
    report = HermesReport(str(path), "log", agent=agent, messages=summary.lines)
    alike: dict[tuple[str, tuple[str, ...]], list[agent_log.CompressionOddity]] = {}
    for odd in summary.oddities:
        alike.setdefault((odd.kind, odd.sessions), []).append(odd)
    for group in alike.values():
        odd = group[0]
        since, until = min(it.since for it in group), max(it.until for it in group)
        when = since if since == until else f"{since} to {until}"
        when += f", {len(group)} times" if len(group) > 1 else ""
        names = (*odd.sessions, "?")
        report.findings.append(
            DoctorFinding(
                f"log-{odd.kind}",
                f"{_ODDITY_TEXTS[odd.kind].format(*names)} ({when})",
                where=(*odd.sessions, *(place for it in group for place in it.lines)),
                count=len(group),
                lost=_ODDITY_LOSSES.get(odd.kind, ""),
                remedy="a log cannot be repaired; `everhold doctor` on the home finds the effects on the store",
                level="wrong" if odd.kind != "unended" else "note",
            )
        )
    return report


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(15) == b"SQLite format 3" or path.suffix == ".db"


def convert_report_to_json(report: HermesReport) -> dict[str, Any]:
    from everhold.doctor.finding import convert_finding_to_json

    return {
        "path": report.path,
        "kind": report.kind,
        "agent": report.agent,
        "schema": report.version,
        "sessions": report.sessions,
        "messages": report.messages,
        "wrong": report.has_problems,
        "findings": [convert_finding_to_json(finding) for finding in report.findings],
    }
