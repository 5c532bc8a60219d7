"""Checks the promises on the store's contents and reports the evidence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from msgspec import Struct

from everhold.core import consumers
from everhold.core.audit import PROMISES, AuditCounts, AuditFinding, audit_session, find_duplicate_openings
from everhold.core.entries import Entry
from everhold.core.wording import describe_count
from everhold.ports.store import Session, Store

PAGE_ENTRIES: Final = 1_000
PAGE_SESSIONS: Final = 500


class AuditReport(Struct, frozen=True, kw_only=True):
    """The result of an audit."""

    findings: list[AuditFinding]
    checked: AuditCounts
    sessions: int

    @property
    def broken_findings(self) -> list[AuditFinding]:
        return [finding for finding in self.findings if finding.level == "broken"]

    def render_lines(self) -> list[dict[str, Any]]:
        """One line per promise: whether it holds, and the evidence."""
        return [
            {
                "promise": promise,
                "text": text,
                "holds": not any(finding.promise == promise for finding in self.broken_findings),
                "evidence": self._render_evidence(promise),
                "doubts": sum(f.promise == promise and f.level == "doubt" for f in self.findings),
            }
            for promise, text in PROMISES.items()
        ]

    def _render_evidence(self, promise: str) -> str:
        """What was checked for a promise, in numbers, because an audit of an empty store proves nothing."""
        checked, doubts = self.checked, sum(f.promise == promise and f.level == "doubt" for f in self.findings)
        sessions, entries = (
            describe_count(self.sessions, "session"),
            describe_count(checked.entries, "entry", "entries"),
        )
        messages, turns = describe_count(checked.heard, "message"), describe_count(checked.turns, "turn")
        compressions, writes = describe_count(checked.compressions, "compression"), describe_count(doubts, "write")
        return {
            "P1": f"{sessions}: every entry is in its own session, every summary covers the context it was made from",
            "P2": f"{messages}, {turns}: no message is answered twice, no call lacks its result",
            "P3": f"{turns}, {compressions}: never two at once, nothing is written after an end",
            "P4": f"{writes} given up or in doubt: the others arrived or are still to be delivered",
            "P5": f"{entries}: messages, replies and notes have an audience",
            "P6": f"{sessions}: each begins with a message, a branch or a binding",
            "P7": "a log cannot show this; tests do",
            "P8": f"{entries}: no gap, every digest matches, derived rows agree",
        }[promise]


async def audit_store(store: Store, session: Session | None = None) -> AuditReport:
    """Check the promises on one session, or on the whole store."""
    sessions = [found async for found in _read_sessions(store)] if session is None else [session]
    findings: list[AuditFinding] = []
    checked = AuditCounts()
    for one in sessions:
        entries = [entry async for entry in read_entries(store, one.id)]
        found, count = audit_session(one.id, entries)
        findings += found
        checked += count
    findings += find_duplicate_openings(sessions)
    for text in await store.verify(None if session is None else session.id):
        findings.append(AuditFinding(promise="P8", session="", text=text))
    for item in await store.list_dead_letters(session="" if session is None else session.id):
        promise = "P4" if item.consumer.startswith(consumers.MEMORY_PREFIX) else "P2"
        doubt = "may have arrived" if item.in_doubt else "given up"
        text = f"{item.consumer}: entry {item.seq} {doubt}: {item.reason}"
        findings.append(AuditFinding(promise=promise, session=item.session, text=text, seq=item.seq, level="doubt"))
    return AuditReport(findings=findings, checked=checked, sessions=len(sessions))


async def read_entries(store: Store, session: str, *, after: int = 0) -> AsyncIterator[Entry]:
    """A session's log. It is read in pages, and other tasks run between them."""
    while page := await store.read_log(session, after=after, limit=PAGE_ENTRIES):
        for entry in page:
            yield entry
        after = page[-1].seq
        await asyncio.sleep(0)


async def _read_sessions(store: Store) -> AsyncIterator[Session]:
    after = ""
    while page := await store.list_sessions(limit=PAGE_SESSIONS, after=after):
        for session in page:
            yield session
        after = page[-1].id
        await asyncio.sleep(0)
