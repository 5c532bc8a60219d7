"""A pinned entry stays in the context word for word until it is unpinned or erased."""

from __future__ import annotations

import pytest

from everhold.core.context import PINS_HEADING
from everhold.core.entries import ChatCommand, ChatLocation, Compressed, Entry, EntryKind, Heard, Notified, Thought
from everhold.core.pins import MAX_PIN_TOKENS, build_pinned
from everhold.errors import TooLong
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway

from .test_accept import texts
from .test_compression import talk
from .test_context import make_compressing

TOLD = "Keep this: " + "the crates are counted twice, by two people, on paper. " * 12
"""Too long to be kept by the rule for people's words."""


@pytest.fixture
def wide(gateway: InProcessGateway) -> InProcessGateway:
    make_compressing(gateway, window=60_000)
    return gateway


def say(gateway: InProcessGateway, text: str, **more: object) -> str:
    gateway.send_message(text, **more)  # type: ignore[arg-type]
    gateway.run_until_idle()
    return gateway.list_shown_texts()[-1]


def find_seq(gateway: InProcessGateway, session: str, text: str) -> int:
    return next(e.seq for e in gateway.read_log(session) if isinstance(e.body, Heard) and e.body.text == text)


def test_a_pin_survives_every_compression_and_undo(wide: InProcessGateway) -> None:
    session = wide.send_message(TOLD).session
    seq = find_seq(wide, session, TOLD)
    assert say(wide, "/pin").startswith(f"Pinned entry {seq}.")
    for round_ in range(3):
        talk(wide, 3, start=10 * round_)
        wide.send_message("/compress here 0")
        assert len(wide.read_bodies(session, Compressed)) == round_ + 1
        assert TOLD not in "\n".join(kept.text for kept in wide.read_bodies(session, Compressed)[-1].kept)
        assert sum(TOLD in text for text in texts(wide, session)) == 1
    wide.send_message("/undo compress")
    wide.send_message("/undo")
    assert any(TOLD in text and text.startswith(PINS_HEADING) for text in texts(wide, session))
    wide.send_message("on")
    assert any(TOLD in message.text for message in wide.runtimes.model.requests[-1].messages)
    wide.assert_sound()


def test_the_context_of_a_turn_that_had_to_compress_is_shown_with_its_pins(gateway: InProcessGateway) -> None:
    """The model refused the request as too long, so the turn itself compressed what came before it."""
    make_compressing(gateway, window=60_000)
    session = gateway.send_message("the crates are counted twice").session
    assert say(gateway, "/pin").startswith("Pinned")
    talk(gateway, 6)
    original = gateway.runtimes.model._by_request
    refused: list[ModelRequest] = []

    def answer(request: ModelRequest) -> ModelResponse:
        if not refused and "how many" in request.messages[-1].text:
            refused.append(request)
            raise TooLong("too many tokens")
        assert original is not None
        return original(request)

    gateway.runtimes.model._by_request = answer
    gateway.send_message("how many crates are there?")
    assert len(gateway.read_bodies(session, Compressed)) == 1
    thought = [entry.seq for entry in gateway.read_log(session) if isinstance(entry.body, Thought)][-1]
    shown = gateway.run(gateway.control.load_context(session, at=thought))
    assert shown.exact
    assert any(message.text.startswith(PINS_HEADING) for message in shown.request.messages)


def test_a_pin_survives_a_restart_and_unpin_removes_it(wide: InProcessGateway) -> None:
    session = wide.send_message(TOLD).session
    seq = find_seq(wide, session, TOLD)
    assert say(wide, f"/pin {seq}").startswith("Pinned")
    assert say(wide, f"/pin {seq}") == f"Entry {seq} is already pinned."
    assert say(wide, "/pins").startswith(f"{seq} ")
    talk(wide, 2)
    wide.send_message("/compress here 0")
    wide.crash()
    wide.start()
    wide.send_message("still there?")
    assert any(TOLD in text for text in texts(wide, session))
    assert say(wide, f"/unpin {seq}") == "Removed 1 pin."
    assert say(wide, f"/unpin {seq}") == f"Entry {seq} is not pinned."
    assert all(TOLD not in text for text in texts(wide, session))
    assert say(wide, "/pins").startswith("Nothing is pinned.")
    wide.assert_sound()


def test_a_text_can_be_pinned_as_it_is_written(wide: InProcessGateway) -> None:
    session = wide.send_message("hello").session
    assert say(wide, "/pin Round half days up.").startswith("Pinned")
    assert any(text.endswith("Round half days up.") for text in texts(wide, session))
    wide.assert_sound()


def test_an_erased_entry_is_not_shown_although_it_is_pinned(wide: InProcessGateway) -> None:
    session = wide.send_message(TOLD).session
    seq = find_seq(wide, session, TOLD)
    wide.send_message("/pin")
    wide.run(wide.control.erase_entries(session, [seq]))
    wide.send_message("on")
    assert not any(text.startswith(PINS_HEADING) for text in texts(wide, session))
    assert say(wide, "/pins").startswith("Nothing is pinned.")
    wide.assert_sound()


def test_no_reply_about_pins_quotes_what_an_erasure_would_not_reach(wide: InProcessGateway) -> None:
    session = wide.send_message(TOLD).session
    seq = find_seq(wide, session, TOLD)
    replies = [say(wide, "/pin"), say(wide, "/pin"), say(wide, "/pins"), say(wide, f"/unpin {seq}")]
    assert "crates" not in " ".join(replies)
    assert replies[2].startswith(f"{seq} of ada")
    assert "pinned by person:ada" in replies[2]
    assert "may unpin it" in replies[0]
    wide.run(wide.control.erase_entries(session, [seq]))
    log = " ".join(str(entry.body) for entry in wide.read_log(session) if isinstance(entry.body, Notified))
    assert "crates" not in log
    wide.assert_sound()


def test_the_pins_have_a_limit_and_say_so(wide: InProcessGateway) -> None:
    session = wide.send_message("x" * 4 * (MAX_PIN_TOKENS - 200)).session
    assert say(wide, "/pin").startswith("Pinned")
    wide.send_message("y" * 4 * 300)
    refusal = say(wide, "/pin")
    assert "was not pinned" in refusal
    assert f"{MAX_PIN_TOKENS:,}" in refusal
    assert "/unpin" in refusal
    wide.runtimes.model = narrow = FakeModel()
    narrow.context_tokens = 2_400
    assert "may take 300" in say(wide, "/pin")
    assert len(wide.run(wide.control.list_pins(session))) == 1


@pytest.mark.parametrize("words", ["/pin 999", "/unpin", "/unpin nothing", "/unpin 1", "/unpin all"])
def test_what_cannot_be_pinned_or_unpinned_is_answered(wide: InProcessGateway, words: str) -> None:
    session = wide.send_message("hello").session
    before = wide.run(wide.store.get_session(session)).generation
    assert say(wide, words)
    assert wide.run(wide.store.get_session(session)).generation == before


def test_a_new_context_has_no_pins(wide: InProcessGateway) -> None:
    session = wide.send_message(TOLD).session
    wide.send_message("/pin")
    wide.send_message("/new")
    wide.send_message("on")
    assert all("crates" not in text for text in texts(wide, session))
    wide.assert_sound()


def test_a_branch_takes_the_pins_over_and_can_remove_them(wide: InProcessGateway) -> None:
    session = wide.send_message(TOLD).session
    seq = find_seq(wide, session, TOLD)
    wide.send_message("/pin")
    wide.send_message("/branch")
    branch = wide.send_message("in the branch").session
    assert branch != session
    talk(wide, 3)
    wide.send_message("/compress here 0")
    assert sum(TOLD in text for text in texts(wide, branch)) == 1
    assert say(wide, f"/unpin {seq}") == "Removed 1 pin."
    assert all(TOLD not in text for text in texts(wide, branch))
    assert any(TOLD in text for text in texts(wide, session)), "the parent keeps its pin"
    wide.assert_sound()


def test_in_a_shared_group_members_pin_their_own_words_only(wide: InProcessGateway) -> None:
    room = {"chat": "room", "kind": "group"}
    session = wide.send_message("my words", who="ada", **room).session  # type: ignore[arg-type]
    wide.send_message("other words", who="bob", **room)  # type: ignore[arg-type]
    first = find_seq(wide, session, "my words")
    assert "owner" in say(wide, f"/pin {first}", who="bob", **room)
    assert say(wide, f"/pin {first}", who="ada", **room).startswith("Pinned")
    assert "owner" in say(wide, f"/unpin {first}", who="bob", **room)
    assert say(wide, "/pins", who="bob", **room).startswith(f"{first} "), "everybody heard it"
    wide.assert_sound()


def test_a_pinned_command_shows_what_it_was_given() -> None:
    body = Heard(
        origin=ChatLocation(platform="fake", account="main", chat="c"),
        text="/note use tabs",
        command=ChatCommand(name="note", argument="use tabs"),
    )
    entry = Entry(
        session="s",
        seq=1,
        pos=1,
        kind=EntryKind.HEARD,
        op=None,
        author="person:ada",
        at=0.0,
        version=1,
        body=body,
        digest=b"",
    )
    pinned = build_pinned(entry)
    assert pinned is not None
    assert pinned.text == "use tabs"
