"""P9: every finding can be made, each from a log or a record that was altered in just that way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from everhold.core.approval_audit import ApprovalAudit
from everhold.core.approvals import ApprovalRecord, ApprovalState, compute_call_digest
from everhold.core.entries import (
    ApprovalDecided,
    ApprovalRequested,
    Began,
    Called,
    Ended,
    Entry,
    EntryBody,
    Returned,
    Thought,
    ToolCall,
    get_body_kind,
)

CALL = ToolCall(id="c", tool="lamp", arguments={"to": "on"})
DIGEST = compute_call_digest(agent="main", call=CALL, effect="once", reach="outside", spec="s")
REQUEST = ApprovalRequested(
    id="R", call="c", tool="lamp", agent="main", effect="once", reach="outside", digest=DIGEST, spec="s",
    because="default", expires=100.0, approvers=("owner",),
)  # fmt: skip
DECIDED = ApprovalDecided(request="R", digest=DIGEST, outcome="allowed", by="person:ada", ground="owner")
CALLED = Called(call="c", tool="lamp", effect="once", key="k", because="request:R", digest=DIGEST)
RECORD = ApprovalRecord(session="s", digest=DIGEST, agent="main", tool="lamp", at=1.0, until=100.0)
Log = list[tuple[EntryBody, int]]
HEALTHY: Log = [
    (Began(type="turn"), 1),
    (Thought(calls=(CALL,)), 1),
    (REQUEST, 1),
    (Returned(call="c", approval="R"), 1),
    (Ended(), 1),
    (DECIDED, 0),
    (Began(type="action", trigger="request:R"), 7),
    (CALLED, 7),
    (Returned(call="c", approval="R"), 7),
    (Ended(), 7),
]


def audit(log: Log, records: dict[str, ApprovalRecord] | None = None, *, at: float = 1.0) -> list[str]:
    found: list[str] = []
    checked = ApprovalAudit(lambda text, _seq: found.append(text))
    for seq, (body, op) in enumerate(log, start=1):
        checked.check_entry(
            Entry(
                session="s",
                seq=seq,
                pos=seq,
                kind=get_body_kind(body),
                op=op or None,
                author="system",
                at=at,
                version=1,
                body=body,
                digest=b"",
            )
        )
    checked.check_records(records or {})
    return found


def replace(at: int, **changes: object) -> Callable[[Log], Log]:
    def change(log: Log) -> Log:
        body, op = log[at]
        return [*log[:at], (structs.replace(body, **changes), op), *log[at + 1 :]]

    return change


def drop(*numbers: int) -> Callable[[Log], Log]:
    return lambda log: [it for number, it in enumerate(log) if number not in numbers]


def repeat_run(log: Log) -> Log:
    again = [(body, 11) for body, _ in log[6:]]
    return [*log, *again]


DAMAGES: list[tuple[Callable[[Log], Log], str]] = [
    (drop(5), "ran without permission"),
    (replace(5, outcome="denied"), "ran without permission"),
    (replace(5, by=""), "by nobody, who may not answer it"),
    (replace(5, ground="member"), "by person:ada, who may not answer it"),
    (replace(5, digest="other"), "is about another call"),
    (lambda log: [*log[:6], log[5], *log[6:]], "was decided twice"),
    (lambda log: [*log[:3], log[2], *log[3:]], "was made twice"),
    (drop(2), "decided, but never made"),
    (replace(1, calls=(structs.replace(CALL, arguments={"to": "off"}),)), "shows another call"),
    (replace(7, digest="other"), "is not the one that was shown"),
    (replace(7, tool="bomb"), "is not the one that was shown"),
    (replace(7, because="default"), "ran for another reason"),
    (replace(7, because="request:Q"), "outside its operation"),
    (replace(8, approval="Q"), "names another one"),
    (repeat_run, "ran twice"),
    (repeat_run, "ended twice"),
    (lambda log: drop(7)(replace(5, outcome="denied")(log)), "came to an end without permission"),
    (drop(6, 7, 8, 9), "was forgotten: it is allowed"),
    (drop(5, 6, 7, 8, 9), "was forgotten: it is open"),
    (drop(8, 9), "was forgotten: it is running"),
]


def test_a_healthy_log_is_not_doubted() -> None:
    assert not audit(HEALTHY)
    assert not audit(drop(5, 6, 7, 8, 9)(HEALTHY), {"R": RECORD})
    allowed = structs.replace(RECORD, state=ApprovalState.ALLOWED)
    assert not audit(drop(6, 7, 8, 9)(HEALTHY), {"R": allowed})
    running = structs.replace(RECORD, state=ApprovalState.RUNNING)
    assert not audit(drop(8, 9)(HEALTHY), {"R": running})
    denied = structs.replace(RECORD, state=ApprovalState.DENIED)
    assert not audit(replace(5, outcome="denied")(drop(6, 7, 8, 9)(HEALTHY)), {"R": denied})
    assert not audit(drop(7)(HEALTHY)), "an allowed call that was given up never started"


@pytest.mark.parametrize("damage, finding", DAMAGES)
def test_every_damage_is_found(damage: Callable[[Log], Log], finding: str) -> None:
    assert finding in "\n".join(audit(damage(HEALTHY)))


def test_nothing_is_allowed_or_run_after_it_expired() -> None:
    found = "\n".join(audit(HEALTHY, at=100.0))
    assert "was allowed after it had expired" in found
    assert "ran after it had expired" in found


@pytest.mark.parametrize("state", list(ApprovalState))
def test_a_record_of_a_settled_request_is_found(state: ApprovalState) -> None:
    assert "is settled or was never made" in "\n".join(audit(HEALTHY, {"R": structs.replace(RECORD, state=state)}))


def test_a_record_that_differs_from_the_log_is_found() -> None:
    waiting = drop(5, 6, 7, 8, 9)(HEALTHY)
    assert "its record says allowed" in audit(waiting, {"R": structs.replace(RECORD, state=ApprovalState.ALLOWED)})[0]
    assert "is about another call" in audit(waiting, {"R": structs.replace(RECORD, digest="other")})[0]
