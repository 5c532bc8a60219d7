"""The state of a place in a forgetting: it is confirmed only by reading back."""

from __future__ import annotations

from everhold.core.erasure import (
    ASK_AGAIN_SECONDS,
    UNCONFIRMED_AFTER_SECONDS,
    PlaceErasure,
    is_ask_due,
    list_unread,
    record_accepted,
    record_asked,
    record_began,
    record_problem,
    record_readback,
)
from everhold.ports.memory import ErasureState, ProviderDeletion

PLACE = PlaceErasure(agent="main", memory="a")
FOUND = ProviderDeletion(id="session:1", what="a session")
CANNOT = ProviderDeletion(id="shared:1", what="a room", state=ErasureState.CANNOT, reason="others spoke there, too")


def test_what_a_place_cannot_delete_remains_if_it_is_not_named_again() -> None:
    place = record_asked(PLACE, [CANNOT], now=1.0)
    again = record_asked(place, [], now=2.0)
    assert [it.deletion for it in again.deletions] == [CANNOT]
    assert again.state is ErasureState.CANNOT
    able = record_asked(again, [ProviderDeletion(id=CANNOT.id, what="a room")], now=3.0)
    assert able.state is ErasureState.ASKED, "a place that names it as deleted can delete it now"


def test_a_lost_answer_is_confirmed_only_if_nothing_is_named_a_day_later() -> None:
    lost = record_began(PLACE, now=1.0)
    again = record_asked(record_began(lost, now=2.0), [], now=3.0)
    assert again.state is ErasureState.ASKED
    assert not list_unread(again), "the provider does not know it"
    assert not is_ask_due(again, now=4.0)
    soon = record_asked(record_began(again, now=4.0), [], now=4.0)
    assert soon.state is ErasureState.ASKED
    late = 3.0 + ASK_AGAIN_SECONDS
    assert is_ask_due(again, now=late)
    found = record_asked(record_began(again, now=late), [CANNOT], now=late)
    assert record_asked(found, [], now=late + 1).deletions[0].state is ErasureState.ASKED, "it begins anew"
    clean = record_asked(record_began(again, now=late), [], now=late)
    assert clean.state is ErasureState.CONFIRMED
    assert not is_ask_due(clean, now=late + ASK_AGAIN_SECONDS)


def test_a_first_answer_that_names_nothing_is_confirmed() -> None:
    assert record_asked(record_began(PLACE, now=1.0), [], now=2.0).state is ErasureState.CONFIRMED


def test_a_deletion_that_no_readback_mentions_becomes_unconfirmed() -> None:
    place = record_asked(PLACE, [FOUND], now=1.0)
    later = record_readback(place, {}, visible_after=1.0, now=1.0 + UNCONFIRMED_AFTER_SECONDS)
    assert later.state is ErasureState.UNCONFIRMED


def test_data_that_is_found_again_has_to_be_gone_twice_again() -> None:
    gone = {FOUND.id: ErasureState.CONFIRMED}
    once = record_readback(record_asked(PLACE, [FOUND], now=1.0), gone, visible_after=10.0, now=2.0)
    again = record_asked(once, [FOUND], now=20.0)
    assert record_readback(again, gone, visible_after=10.0, now=21.0).state is ErasureState.ASKED


def test_only_what_cannot_be_deleted_is_accepted() -> None:
    place = record_accepted(record_asked(PLACE, [CANNOT, FOUND], now=1.0), now=2.0)
    assert [(it.deletion.id, it.accepted_at) for it in place.deletions] == [(CANNOT.id, 2.0), (FOUND.id, 0.0)]
    assert place.can_show, "the other may still be shown"
    assert record_asked(place, [CANNOT], now=3.0).deletions[-1].accepted_at == 2.0, "it is the same"
    more = ProviderDeletion(id=CANNOT.id, what="two rooms", state=ErasureState.CANNOT)
    assert not record_asked(place, [more], now=3.0).deletions[-1].accepted_at


def test_a_clock_that_was_set_back_delays_nothing_until_the_old_time() -> None:
    gone = {FOUND.id: ErasureState.CONFIRMED}
    once = record_readback(record_asked(PLACE, [FOUND], now=9_000_000.0), gone, visible_after=10.0, now=9_000_000.0)
    again = record_readback(once, gone, visible_after=10.0, now=100.0)
    assert again.state is ErasureState.ASKED, "nobody knows how long ago the first reading was"
    assert record_readback(again, gone, visible_after=10.0, now=110.0).state is ErasureState.CONFIRMED


def test_a_place_is_asked_again_after_the_clock_was_set_back() -> None:
    asked = record_asked(PLACE, [FOUND], now=9_000_000.0)
    back = record_problem(asked, "down", now=100.0)
    late = record_problem(back, "down", now=100.0 + UNCONFIRMED_AFTER_SECONDS)
    assert late.state is ErasureState.UNCONFIRMED
    assert is_ask_due(late, now=100.0 + UNCONFIRMED_AFTER_SECONDS), "it was asked in the future"
