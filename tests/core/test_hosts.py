"""Which versions may work on one store, and what a commit tells other hosts."""

from __future__ import annotations

import pytest

from everhold.core.entries import ChatLocation, EntryDraft, EntryKind, Heard
from everhold.core.hosts import build_commit_hint, explain_version_conflict, find_version_conflict
from everhold.ports.hosts import CommitHint, HostRecord, HostStatus, HostVersion
from everhold.ports.store import Change, Claim, ConsumerCursor, Step, Wakeup


@pytest.mark.parametrize(
    "own, other",
    [
        ("0.3.1", "0.3.9"),
        ("0.3.1", "0.4.0"),
        ("0.9.2", "1.0.0"),
        ("0.9.2", "1.0.7rc1"),
        ("1", "1.1"),
        ("1.2.dev1", "1.3"),
    ],
)
def test_neighbouring_releases_may_work_together(own: str, other: str) -> None:
    for one, two in ((own, other), (other, own)):
        assert explain_version_conflict(HostVersion(one, 4), HostVersion(two, 4)) == ""


@pytest.mark.parametrize(
    "own, other", [("0.3.1", "0.5.0"), ("0.9.0", "1.1.0"), ("1.0.0", "3.0.0"), ("1.2.0", "2.2.0"), ("1", "1.2")]
)
def test_releases_that_are_further_apart_may_not(own: str, other: str) -> None:
    for one, two in ((own, other), (other, own)):
        assert "more than one version apart" in explain_version_conflict(HostVersion(one, 4), HostVersion(two, 4))


def test_neighbouring_schemas_may_work_together_and_others_not() -> None:
    assert explain_version_conflict(HostVersion("0.1.0", 4), HostVersion("0.1.0", 5)) == ""
    assert explain_version_conflict(HostVersion("0.1.0", 5), HostVersion("0.1.0", 4)) == ""
    assert "schema 4 and schema 6" in explain_version_conflict(HostVersion("0.1.0", 4), HostVersion("0.1.0", 6))
    assert "schema 6 and schema 4" in explain_version_conflict(HostVersion("0.1.0", 6), HostVersion("0.1.0", 4))


def make_status(name: str, schema: int, *, is_alive: bool = True) -> HostStatus:
    return HostStatus(
        host=HostRecord(id=name, name=name, version=HostVersion("0.1.0", schema)),
        seconds_since_start=1.0,
        seconds_since_renewal=1.0,
        is_alive=is_alive,
        is_draining=False,
    )


def test_a_host_does_not_start_beside_one_that_is_too_old() -> None:
    own = HostVersion("0.1.0", 6)
    assert find_version_conflict(own, []) == ""
    assert find_version_conflict(own, [make_status("a", 5), make_status("b", 7)]) == ""
    assert find_version_conflict(own, [make_status("a", 5), make_status("b", 4)]).startswith("b runs on this store: ")
    assert find_version_conflict(own, [make_status("b", 4, is_alive=False)]) == ""


def test_a_hint_says_whether_a_cursor_is_due_that_nobody_claimed() -> None:
    heard = EntryDraft(body=Heard(origin=ChatLocation(platform="p", chat="c"), text="hello"), author="person:a")
    change = Change(step=Step.ACCEPT, session="s", at=1.0, entries=(heard,), wakeups=(Wakeup(consumer="turn"),))
    claim = Claim(cursor=ConsumerCursor(consumer="turn", session="s"), agent="main")
    hint = CommitHint(session="s", step="accept", kinds=(EntryKind.HEARD,), is_work_due=True)
    assert build_commit_hint(change, ()) == hint
    assert not build_commit_hint(change, (claim,)).is_work_due
