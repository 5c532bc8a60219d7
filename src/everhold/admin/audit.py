"""Checks the promises on the store's contents and reports the evidence."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from msgspec import Struct

from everhold.core.audit import PROMISES, AuditCounts, AuditFinding, ReportProgress
from everhold.core.entries import Entry
from everhold.core.wording import describe_count
from everhold.ports.store import Session, Store

PAGE_ENTRIES: Final = 1_000


class AuditReport(Struct, frozen=True, kw_only=True):
    """The result of an audit."""

    findings: list[AuditFinding]
    checked: AuditCounts

    @property
    def sessions(self) -> int:
        return self.checked.sessions

    @property
    def broken_findings(self) -> list[AuditFinding]:
        return [finding for finding in self.findings if finding.level == "broken"]

    def render_lines(self) -> list[dict[str, Any]]:
        """One line per promise: whether it holds, and the evidence."""
        broken = Counter(finding.promise for finding in self.broken_findings)
        doubts = Counter(finding.promise for finding in self.findings if finding.level == "doubt")
        evidence = self._render_evidence(doubts)
        return [
            {
                "promise": promise,
                "text": text,
                "holds": not broken[promise],
                "evidence": evidence[promise],
                "doubts": doubts[promise],
            }
            for promise, text in PROMISES.items()
        ]

    def _render_evidence(self, doubts: Mapping[str, int]) -> dict[str, str]:
        """What was checked for each promise, in numbers, because an audit of an empty store proves nothing."""
        checked = self.checked
        sessions, entries = (
            describe_count(checked.sessions, "session"),
            describe_count(checked.entries, "entry", "entries"),
        )
        messages, turns = describe_count(checked.heard, "message"), describe_count(checked.turns, "turn")
        compressions, recalled = (
            describe_count(checked.compressions, "compression"),
            describe_count(checked.recalled, "recalled entry", "recalled entries"),
        )
        replies, items = (
            describe_count(checked.replies, "part of a reply", "parts of replies"),
            describe_count(checked.memory_items, "memory item"),
        )
        return {
            "P1": f"{sessions}: every entry is in its own session, every summary covers the context it was made from",
            "P2": f"{messages}, {turns}, {replies}: no message is answered twice, no call lacks its result, and each "
            f"part has a receipt, a dead letter or a reason; {checked.resent:,} sent again in doubt",
            "P3": f"{turns}, {compressions}: never two at once, nothing is written after an end",
            "P4": f"{items}: each has a receipt, a dead letter or a reason; {doubts['P4']:,} in doubt",
            "P5": f"{entries}: messages, replies and notes have an audience; {recalled} were for the people present",
            "P6": f"{sessions}: each begins with a message, a branch or a binding",
            "P7": f"{describe_count(checked.choices, 'setting')} chosen in sessions: the last choice is in force; "
            "edits of the configuration are not in the log, so only tests check them",
            "P8": f"{entries}: no gap, every digest matches, derived rows and budgets agree",
            "P9": f"{describe_count(checked.approvals, 'request')} for permission: each ran at most once, only what "
            "was shown and allowed, and each that is open has a record",
        }


async def audit_store(
    store: Store, session: Session | None = None, report_progress: ReportProgress = lambda done, total: None
) -> AuditReport:
    """Check the promises on one session, or on the whole store."""
    found = await store.audit(None if session is None else session.id, report_progress)
    wrong = [AuditFinding(promise="P8", session="", text=text) for text in found.contradictions]
    return AuditReport(findings=[*found.findings, *wrong], checked=found.checked)


async def read_entries(store: Store, session: str, *, after: int = 0) -> AsyncIterator[Entry]:
    """A session's log. It is read in pages, and other tasks run between them."""
    while page := await store.read_log(session, after=after, limit=PAGE_ENTRIES):
        for entry in page:
            yield entry
        after = page[-1].seq
        await asyncio.sleep(0)
