"""Parsing of room events: text, recipients, and malformed events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from everhold.infra.secret import SecretString
from everhold.ingress.accept import build_dedup_key
from everhold.platforms.matrix import parsing
from everhold.platforms.matrix.client import MatrixClient
from everhold.platforms.matrix.parsing import EVERHOLD_CONTENT_KEY, MatrixMessage, MatrixRoom
from everhold.ports.platform import IncomingMessage
from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackResponse, LoopbackServer

ME, ADA = "@helper:example.org", "@ada:example.org"
COMPANY = MatrixRoom(members={ME: "Helper", ADA: "Ada", "@eve:example.org": "Eve"})
ALONE = MatrixRoom(members={ME: "Helper", ADA: "Ada"})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def event(content: Any, *, type: str = "m.room.message", sender: str = ADA, **more: Any) -> dict[str, Any]:
    return {"type": type, "event_id": "$1", "sender": sender, "origin_server_ts": 1, "content": content, **more}


def read(raw: Any, room: MatrixRoom = COMPANY) -> MatrixMessage | None:
    return parsing.parse_event(
        raw, account="main", chat="!room", me=ME, room=room, bots={"@ci:example.org"}, commands={"status": ""}
    )


def said(body: str, room: MatrixRoom = COMPANY, **more: Any) -> IncomingMessage:
    message = read(event({"msgtype": "m.text", "body": body, **more}), room)
    assert message is not None
    return message.incoming


def mentions(*users: str) -> dict[str, Any]:
    return {"m.mentions": {"user_ids": list(users)}}


@pytest.mark.parametrize(
    "body, more, meant",
    [
        ("hello", {}, False),
        (f"{ME} hello", {}, True),
        (f"so says {ME}.", {}, True),
        (f"{ME}x hello", {}, False),
        ("Helper: hello", {}, True),
        ("@helper, hello", {}, True),
        ("helpers unite", {}, False),
        ("my helper", {}, False),
        ("hello", mentions(ME), True),
        (f"I like {ME}", mentions(), False),
        (f"I like {ME}", mentions(ADA), False),
        ("/status", {}, True),
        ("/statusquo", {}, False),
        ("/", {}, False),
    ],
)
def test_in_a_group_a_mention_addresses_the_agent(body: str, more: dict[str, Any], meant: bool) -> None:
    assert said(body, **more).addressed is meant
    assert said(body, ALONE, **more).addressed


@pytest.mark.parametrize("before", [f"{ME}: ", f"{ME} ", "Helper: ", "@Helper ", "helper, "])
def test_a_mention_before_a_command_is_left_out(before: str) -> None:
    found = said(f"{before}/status")
    assert (found.text, found.addressed) == ("/status", True)


def test_quotes_of_old_clients_are_left_out() -> None:
    replies: dict[str, Any] = {"m.relates_to": {"m.in_reply_to": {"event_id": "$0"}}}
    assert said("> <@ada:example.org> one\n> two\n\nfine", **replies).text == "fine"
    assert said("> <@ada:example.org> one\n\nfine").text != "fine", "a quote written by the person stays"


def test_reactions_and_redactions_are_not_heard() -> None:
    assert (
        read(event({"m.relates_to": {"rel_type": "m.annotation", "event_id": "$0", "key": "+"}}, type="m.reaction"))
        is None
    )
    assert read(event({"topic": "x"}, type="m.room.topic", state_key="")) is None
    assert read(event({"holo": 1}, type="org.example.hologram")) is None
    assert read(event({}, unsigned={"redacted_because": {"sender": ADA, "content": {}}})) is None
    assert read(event({"msgtype": "m.text", "body": "hello"}, sender=ME)) is None


def test_bots_are_distinguished_from_people() -> None:
    assert not said("hello").bot
    for told, bot, hops in [
        ({"hops": 4}, True, 4),
        ({"hops": -4}, True, 0),
        ({"hops": "x"}, True, 0),
        ("x", False, 0),
    ]:
        marked: dict[str, Any] = {EVERHOLD_CONTENT_KEY: told}
        assert (said("hello", **marked).bot, said("hello", **marked).hops) == (bot, hops)
    notice = read(event({"msgtype": "m.notice", "body": "the build failed"}))
    assert notice is not None
    assert (notice.incoming.bot, notice.incoming.notice) == (True, True)
    other = read(event({"msgtype": "m.text", "body": "hello"}, sender="@ci:example.org"))
    assert other is not None
    assert other.incoming.bot


def test_another_user_cannot_replace_a_message_by_finishing_its_draft() -> None:
    """A draft is finished by its author's message. The same by another person is a separate message."""

    def finish(sender: str, id: str) -> IncomingMessage:
        new = {"msgtype": "m.text", "body": "done"}
        relation = {"rel_type": "m.replace", "event_id": "$draft"}
        content = {**new, "m.new_content": new, "m.relates_to": relation, EVERHOLD_CONTENT_KEY: {"hops": 1}}
        message = read({**event(content, sender=sender), "event_id": id})
        assert message is not None
        return message.incoming

    mine, again, theirs = finish(ADA, "$1"), finish(ADA, "$2"), finish("@eve:example.org", "$3")
    assert (mine.event, mine.origin.message) == ("message", "$draft")
    assert build_dedup_key(mine) == build_dedup_key(again)
    assert build_dedup_key(mine) != build_dedup_key(theirs)


def test_without_an_offset_old_messages_are_not_heard() -> None:
    old, new = (
        event({"body": age}, unsigned={"age": age}) for age in (parsing.RECENT_AGE_MS, parsing.RECENT_AGE_MS - 1)
    )
    room = {"timeline": {"events": [old, new], "limited": True, "prev_batch": "x"}}
    news = {"next_batch": "n", "rooms": {"join": {"!a": room, "!b": {}}, "leave": {"!c": room}, "invite": {"!d": {}}}}
    found = parsing.limit_to_recent(news)
    assert found["next_batch"] == "n"
    assert found["rooms"] == {
        "join": {"!a": {"timeline": {"events": [new]}}, "!b": {"timeline": {"events": []}}},
        "leave": {"!c": {"timeline": {"events": [new]}}},
        "invite": {"!d": {}},
    }
    gap = {"timeline": {"events": [new], "limited": True, "prev_batch": "x"}}
    assert parsing.limit_to_recent({"rooms": {"join": {"!a": gap}}})["rooms"]["join"]["!a"] == gap, (
        "more may be of that day"
    )


def test_an_encrypted_message_is_mentioned() -> None:
    sealed = {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x", "sender_key": "x", "device_id": "x"}
    found = read(event({**sealed, "session_id": "x"}, type="m.room.encrypted"), ALONE)
    assert found is not None
    assert "encrypted" in found.incoming.text
    assert found.incoming.addressed


@pytest.mark.parametrize(
    "url",
    ["https://example.org/x", "mxc://evil/../../etc", "mxc://a b/c", "mxc://x", "file:///etc/passwd", "mxc://x/y?z"],
)
def test_a_file_must_be_at_a_homeserver(url: str) -> None:
    found = read(event({"msgtype": "m.file", "body": "a.txt", "url": url}))
    assert found is not None
    assert found.file is not None
    assert found.file.reference == ""


@pytest.mark.parametrize(
    "relation", ["nonsense", 7, None, {"rel_type": 5}, {"m.in_reply_to": {}}, {"m.in_reply_to": None}]
)
def test_malformed_relations_lose_no_message(relation: Any) -> None:
    assert said("hello", **{"m.relates_to": relation}).text == "hello"


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "body",
                "url",
                "info",
                "filename",
                "m.relates_to",
                "m.new_content",
                "m.mentions",
                EVERHOLD_CONTENT_KEY,
                "msgtype",
            ]
        ),
        JSON | st.just("m.text") | st.just({"rel_type": "m.replace", "event_id": "$0"}),
    ),
    st.sampled_from(["m.text", "m.image", "m.emote", "m.notice", "org.other"]),
)
def test_malformed_events_are_parsed_or_raise_known_errors(content: dict[str, Any], kind: str) -> None:
    """The listener stores an event unparsed if one of these is raised; any other error would stop it."""
    raw = event({"msgtype": kind, "body": "x", **content})
    try:
        found = read(raw)
    except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return
    if found is not None:
        assert isinstance(found.incoming.text, str)
        assert isinstance(found.incoming.hops, int)
        assert isinstance(found.incoming.origin.thread, str)


def test_membership_begins_with_the_invitation() -> None:
    def member(membership: str, before: str = "") -> dict[str, Any]:
        unsigned = {"prev_content": {"membership": before}} if before else {}
        return event({"membership": membership}, type="m.room.member", state_key=ME, unsigned=unsigned)

    talk = event({"msgtype": "m.text", "body": "x"})
    assert parsing.find_join_index([talk, talk], ME) is None
    assert parsing.find_join_index([talk, member("join")], ME) == 2
    assert parsing.find_join_index([talk, member("invite"), talk, member("join", "invite"), talk], ME) == 2
    assert parsing.find_join_index([talk, member("join", "join"), talk], ME) is None, "a new name is no arrival"
    again = [
        member("join"),
        talk,
        member("leave", "join"),
        talk,
        member("invite", "leave"),
        talk,
        member("join", "invite"),
    ]
    assert parsing.find_join_index(again, ME) == 5


def test_a_room_may_change_its_owner() -> None:
    found = said("hello", ALONE)
    assert (found.kind, found.can_change_owner) == ("dm", True)


def member(user: str, membership: str, before: str = "") -> dict[str, Any]:
    past: dict[str, Any] = {"unsigned": {"prev_content": {"membership": before}}} if before else {}
    return event({"membership": membership}, type="m.room.member", sender=user, state_key=user, **past)


def test_a_late_message_has_the_audience_of_its_time() -> None:
    eve, bob = "@eve:example.org", "@bob:example.org"
    said_: dict[str, Any] = event({"msgtype": "m.text", "body": "hello"})
    events = [
        said_,  # Ada alone
        member(bob, "invite"),
        said_,
        member(bob, "join", "invite"),
        member(bob, "leave", "join"),
        said_,  # alone again
        member(ADA, "join", "join"),  # another name
        member(eve, "join"),
        member(ADA, "leave", "join"),
        said_,  # Eve alone
    ]
    rooms = parsing.iterate_rooms(MatrixRoom(members={ME: "Helper", eve: "Eve"}), events)
    found = [(sorted(set(room.members) - {ME}), room.is_direct) for room in rooms]
    assert [found[at][0] for at in (0, 2, 5, 9)] == [[ADA], [ADA, bob], [ADA], [eve]]
    assert [found[at][1] for at in (0, 2, 5, 7, 9)] == [True, False, True, False, True]


@given(JSON, JSON)
def test_malformed_membership_events_are_ignored(content: Any, unsigned: Any) -> None:
    made_up = {"type": "m.room.member", "state_key": ADA, "content": content, "unsigned": unsigned}
    rooms = [dict(room.members) for room in parsing.iterate_rooms(ALONE, [made_up, content])]
    assert rooms == [ALONE.members, ALONE.members]
    MatrixRoom.from_events([made_up])
    parsing.find_predecessor([content, {"type": "m.room.create", "content": content}])


class Forgetful(LoopbackServer):
    """A homeserver that cannot return earlier members of a room."""

    def name_call(self, request: LoopbackRequest) -> str:
        return request.path

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        if "at" in request.query:
            return LoopbackResponse.json({"errcode": "M_UNRECOGNIZED", "error": "no"}, status=400)
        return LoopbackResponse.json({"chunk": [member(ADA, "join")]})


async def test_without_earlier_members_the_current_ones_are_used() -> None:
    async with Forgetful() as server:
        client = MatrixClient(server.url, SecretString("x"))
        found = MatrixRoom.from_events(await client.get_members("!room", at="s1"))
        await client.aclose()
    assert list(found.members) == [ADA]


def test_an_edit_of_another_s_message_is_the_editor_s_own_message() -> None:
    """A homeserver passes such an edit on. It must neither replace nor hide the words of the other person."""
    keys = set()
    for number, sender in enumerate((ADA, "@eve:example.org")):
        content = {"msgtype": "m.text", "body": "* no", "m.new_content": {"msgtype": "m.text", "body": "no"}}
        relation = {"rel_type": "m.replace", "event_id": "$of-ada"}
        message = read(event({**content, "m.relates_to": relation}, sender=sender, event_id=f"$edit-{number}"))
        assert message is not None
        found = message.incoming
        assert (found.sender, found.text, found.event, found.origin.message) == (sender, "no", "edit", "$of-ada")
        keys.add(build_dedup_key(found))
    assert len(keys) == 2, "one edit hides the other"


@pytest.mark.parametrize("id", [None, 5, "", "x", "$", "$" + "x" * 300, "$a\nb", ["$a"]])
def test_an_edit_or_thread_without_a_valid_id_is_not_parsed(id: object) -> None:
    new = {"msgtype": "m.text", "body": "no"}
    for kind in ("m.replace", "m.thread"):
        with pytest.raises((ValueError, KeyError)):
            read(event({**new, "m.new_content": new, "m.relates_to": {"rel_type": kind, "event_id": id}}))


def test_a_redaction_is_no_message() -> None:
    assert read(event({"reason": "spam"}, type="m.room.redaction", redacts="$of-ada")) is None
    assert read(event({}, unsigned={"redacted_because": event({}, type="m.room.redaction")})) is None
