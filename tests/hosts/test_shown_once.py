"""The trial of several hosts tells a reply that was shown twice from a notice that two outages have in common."""

from __future__ import annotations

from everhold.core.entries import ChatLocation, Entry, EntryBody, EntryKind, Notified, Said
from everhold.engine.outbox.platform import DRAFT_PART
from everhold.ports.store import Receipt
from everhold.testing.kill.hosts_trial import check_shown_once
from everhold.testing.kill.verdict import SessionHistory, StoreContents

CHAT = ChatLocation(platform="telegram", account="main", chat="1001", message="1")
OUTAGE = "The model cannot be reached right now."
REPLY = "re user-1001.m1 and that is all"


def make_contents(*, in_doubt: tuple[int, ...] = (), draft_in_doubt: bool = False) -> StoreContents:
    """A log with one reply at seq 2, and the same notice at seq 4 and 6."""
    bodies: dict[int, EntryBody] = {2: Said(text=REPLY, to=CHAT), 4: Notified(text=OUTAGE, about="outage", to=CHAT)}
    bodies[6] = bodies[4]
    entries = [
        Entry(
            session="s",
            seq=seq,
            pos=seq,
            at=1.0,
            author="agent",
            kind=EntryKind(type(body).__name__.lower()),
            version=1,
            digest=b"",
            body=body,
            op=1,
        )
        for seq, body in bodies.items()
    ]
    receipts = {f"p {seq}": make_receipt(seq, 0, in_doubt=seq in in_doubt) for seq in bodies}
    receipts["p draft"] = make_receipt(1, DRAFT_PART, in_doubt=draft_in_doubt)
    return StoreContents(
        logs=[SessionHistory("s", entries, [])],
        dead_letters=[],
        receipts=receipts,
        problems=[],
        people={},
        identities=set(),
        paid=set(),
        marked=set(),
    )


def make_receipt(seq: int, part: int, *, in_doubt: bool) -> Receipt:
    return Receipt(consumer="p", session="s", seq=seq, part=part, key=f"s:{seq}:{part}", in_doubt=in_doubt)


def find(shown: list[str], contents: StoreContents) -> list[str]:
    return list(check_shown_once(shown, contents))


def test_a_notice_of_two_outages_is_shown_twice() -> None:
    assert not find([REPLY, OUTAGE, OUTAGE], make_contents())


def test_a_reply_that_is_shown_twice_uncounted_is_found() -> None:
    (found,) = find([REPLY, REPLY, OUTAGE, OUTAGE], make_contents())
    assert found == f"{REPLY!r} was shown 2 times, the log has it 1 times, not in doubt"


def test_another_reply_in_doubt_does_not_excuse_it() -> None:
    assert len(find([REPLY, REPLY, OUTAGE, OUTAGE], make_contents(in_doubt=(4,)))) == 1


def test_a_reply_in_doubt_may_be_shown_as_often_as_it_is_sent() -> None:
    assert not find([REPLY] * 3, make_contents(in_doubt=(2,)))
    assert find([REPLY] * 4, make_contents(in_doubt=(2,)))


def test_a_notice_that_is_shown_more_often_than_there_were_outages_is_found() -> None:
    assert find([OUTAGE] * 3, make_contents())


def test_a_part_of_a_reply_that_stays_is_found_unless_it_is_in_doubt() -> None:
    assert find(["re user-1001.m1 …", REPLY], make_contents())
    assert not find(["re user-1001.m1 …", REPLY], make_contents(draft_in_doubt=True))
