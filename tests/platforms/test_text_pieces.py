"""What each platform reports of a forwarded, quoted or embedded text, and of its author."""

from __future__ import annotations

from typing import Any

import pytest
from telegram import Update, User

from everhold.core.entries import AGENT_ITSELF, TextPiece
from everhold.core.provenance import build_piece_origin, is_foreign, render_piece
from everhold.ingress.held_messages import add_missing_note
from everhold.platforms.discord import parsing as discord
from everhold.platforms.matrix import parsing as matrix
from everhold.platforms.slack import parsing as slack
from everhold.platforms.telegram import parsing as telegram
from everhold.ports.platform import IncomingMessage
from everhold.testing.platforms.telegram import (
    make_channel_origin,
    make_chat_origin,
    make_hidden_origin,
    make_user_origin,
)

# -- Telegram ----------------------------------------------------------------------------------------------------------

BOT = User(id=900, is_bot=True, first_name="agent", username="agent_bot")
ADA = {"id": 1001, "is_bot": False, "first_name": "Ada"}
BOB = {"id": 1002, "is_bot": False, "first_name": "Bob"}
BOB_ORIGIN = make_user_origin(1002, "Bob")
QUOTE_OF_ANOTHER = {"text": "x", "position": 0}


def telegram_message(text: str = "", *, by: dict[str, Any] = ADA, group: bool = False, **more: Any) -> dict[str, Any]:
    chat = {"id": -100, "type": "supergroup", "title": "g"} if group else {"id": 1001, "type": "private"}
    said = {"text": text} if text else {}
    return {"message_id": 5, "date": 1_700_000_000, "chat": chat, "from": by, **said, **more}


def read_telegram(text: str = "", **more: Any) -> IncomingMessage:
    update = Update.de_json({"update_id": 1, "message": telegram_message(text, **more)}, None)
    found = telegram.parse_update(update, account="main", me=BOT)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "origin, by, name",
    [
        (BOB_ORIGIN, "telegram:1002", "Bob"),
        (make_hidden_origin("Bob B."), "", "Bob B."),
        (make_chat_origin(-100, "The club", signature="chair"), "telegram:-100", "The club, chair"),
        (make_channel_origin(-200, "News"), "telegram:-200", "News"),
    ],
)
def test_telegram_names_the_author_of_a_forward_as_far_as_he_allows(origin: dict[str, Any], by: str, name: str) -> None:
    found = read_telegram("/schedule 9:00 x", forward_origin=origin)
    assert found.text == ""
    assert found.pieces == (TextPiece(source="forwarded", by=by, name=name, text="/schedule 9:00 x"),)


def test_the_caption_of_forwarded_media_is_forwarded() -> None:
    photo = [{"file_id": "f", "file_unique_id": "f", "width": 9, "height": 9}]
    found = read_telegram(photo=photo, caption="@agent_bot /status", forward_origin=BOB_ORIGIN)
    assert (found.text, [piece.text for piece in found.pieces]) == ("", ["@agent_bot /status"])
    without = read_telegram(photo=photo, forward_origin=BOB_ORIGIN)
    assert [piece.text for piece in without.pieces] == [""], "the file is not the sender's"


def test_a_forwarded_mention_does_not_address_the_agent() -> None:
    entities = [{"type": "mention", "offset": 0, "length": 10}]
    assert read_telegram("@agent_bot hi", group=True, entities=entities).addressed
    assert not read_telegram("@agent_bot hi", group=True, entities=entities, forward_origin=BOB_ORIGIN).addressed


@pytest.mark.parametrize(
    "more, piece",
    [
        (
            {"reply_to_message": telegram_message("one two", by=BOB)},
            TextPiece(source="quoted", by="telegram:1002", name="Bob", text="one two"),
        ),
        (
            {"reply_to_message": telegram_message("one two", by=BOB), "quote": {"text": "two", "position": 4}},
            TextPiece(source="quoted", by="telegram:1002", name="Bob", text="two"),
        ),
        (
            {"reply_to_message": telegram_message("mine")},
            TextPiece(source="quoted", by="telegram:1001", name="Ada", own=True, text="mine"),
        ),
        (
            {"reply_to_message": telegram_message("his", forward_origin=BOB_ORIGIN)},
            TextPiece(source="quoted", by="telegram:1002", name="Bob", text="his"),
        ),
        (
            {"reply_to_message": telegram_message("ours", by=BOT.to_dict())},
            TextPiece(source="quoted", by=AGENT_ITSELF, name="agent", text="ours"),
        ),
        (
            {"external_reply": {"origin": BOB_ORIGIN}, "quote": {"text": "elsewhere", "position": 0}},
            TextPiece(source="quoted", by="telegram:1002", name="Bob", text="elsewhere"),
        ),
    ],
)
def test_a_telegram_reply_quotes_with_the_author(more: dict[str, Any], piece: TextPiece) -> None:
    found = read_telegram("and?", **more)
    assert (found.text, found.pieces) == ("and?", (piece,))


def test_a_topic_is_not_a_quote() -> None:
    opened = telegram_message(forum_topic_created={"name": "t", "icon_color": 1})
    assert read_telegram("hi", reply_to_message=opened).pieces == ()


# -- Discord -----------------------------------------------------------------------------------------------------------

DIRECT = discord.DiscordChannel(id="2001", is_direct=True)


def discord_message(text: str = "", *, user: str = "1001", name: str = "ada", **more: Any) -> dict[str, Any]:
    author = {"id": user, "username": name}
    return {"id": "7", "type": 0, "author": author, "content": text, "attachments": [], "embeds": [], **more}


def read_discord(text: str = "", **more: Any) -> IncomingMessage:
    message = discord_message(text, **more)
    found = discord.parse_message(message, channel=DIRECT, account="main", me=900, roles=frozenset())
    assert found is not None
    return found


def make_snapshot(text: str, **more: Any) -> dict[str, Any]:
    snapshot = {"type": 0, "content": text, "mentions": [], "attachments": [], "embeds": [], **more}
    return {"message_reference": {"type": 1, "message_id": "3"}, "message_snapshots": [{"message": snapshot}]}


def test_discord_does_not_name_the_author_of_a_forward() -> None:
    found = read_discord(**make_snapshot("/status now", mentions=[{"id": "5", "username": "eve"}]))
    assert found.text == ""
    assert found.pieces == (TextPiece(source="forwarded", text="/status now"),)


def test_files_of_a_forwarded_discord_message_come_with_it() -> None:
    file = {"filename": "a.txt", "content_type": "text/plain", "size": 3, "url": "https://example.org/a"}
    message = discord_message(**make_snapshot("", attachments=[file]))
    assert [it.name for it in discord.parse_files(message)] == ["a.txt"]
    found = read_discord(**make_snapshot("", attachments=[file]))
    assert [piece.source for piece in found.pieces] == ["forwarded"]


@pytest.mark.parametrize(
    "replied, piece",
    [
        (
            discord_message("one", user="1002", name="bob"),
            TextPiece(source="quoted", by="discord:1002", name="bob", text="one"),
        ),
        (discord_message("mine"), TextPiece(source="quoted", by="discord:1001", name="ada", own=True, text="mine")),
        (
            discord_message("ours", user="900", name="agent"),
            TextPiece(source="quoted", by=AGENT_ITSELF, name="agent", text="ours"),
        ),
        (discord_message(**make_snapshot("his")), TextPiece(source="quoted", text="his")),
    ],
)
def test_a_discord_reply_quotes_with_the_author(replied: dict[str, Any], piece: TextPiece) -> None:
    found = read_discord("and?", type=19, referenced_message=replied, message_reference={"type": 0, "message_id": "3"})
    assert (found.text, found.pieces) == ("and?", (piece,))


def test_a_reply_to_a_deleted_message_has_no_quote() -> None:
    assert read_discord("and?", type=19, referenced_message=None).pieces == ()


def test_a_discord_embed_is_not_the_senders() -> None:
    preview = {"type": "article", "title": "T", "description": "D", "provider": {"name": "Example"}}
    found = read_discord("look: https://example.org", embeds=[preview, {"type": "image"}])
    assert found.text == "look: https://example.org"
    assert found.pieces == (TextPiece(source="embedded", name="Example", text="T\nD"),)


# -- Slack -------------------------------------------------------------------------------------------------------------

APP = slack.SlackIdentity(user="UBOT", bot="BBOT", name="agent")
SHARED = {"author_id": "UBOB", "author_name": "Bob", "text": "say <@UBOT>", "is_msg_unfurl": True, "fallback": "x"}


def read_slack(text: str, *attachments: dict[str, Any], **more: Any) -> IncomingMessage:
    event = {"type": "message", "channel": "D1", "user": "UADA", "text": text, "ts": "1.2", "attachments": attachments}
    found = slack.parse_message({**event, **more}, account="main", me=APP)
    assert found is not None
    return found


def test_a_shared_slack_message_is_forwarded() -> None:
    found = read_slack("", {**SHARED, "is_share": True})
    assert found.text == ""
    assert found.pieces == (TextPiece(source="forwarded", by="slack:UBOB", name="Bob", text="say @agent"),)
    commented = read_slack("what is this?", {**SHARED, "is_share": True})
    assert (commented.text, len(commented.pieces)) == ("what is this?", 1)


@pytest.mark.parametrize(
    "id, by, own", [("UBOB", "slack:UBOB", False), ("UADA", "slack:UADA", True), ("UBOT", "", False)]
)
def test_a_linked_slack_message_is_quoted(id: str, by: str, own: bool) -> None:
    (piece,) = read_slack("see <https://x.slack.com/p1>", {**SHARED, "author_id": id}).pieces
    assert (piece.source, piece.by, piece.own) == ("quoted", by or AGENT_ITSELF, own)


def test_a_slack_preview_is_embedded() -> None:
    preview = {"service_name": "Example", "title": "T", "text": "D", "from_url": "https://example.org"}
    assert read_slack("look", preview).pieces == (TextPiece(source="embedded", name="Example", text="T\nD"),)


def test_files_of_a_shared_slack_message_come_with_it() -> None:
    file = {"id": "F1", "name": "a.txt", "mimetype": "text/plain", "size": 3, "url_private": "https://x.slack.com/a"}
    shared = {**SHARED, "is_share": True, "text": "", "fallback": "", "files": [file]}
    assert [it.name for it in slack.parse_files({"attachments": [shared]})] == ["a.txt"]
    assert [piece.source for piece in read_slack("", shared).pieces] == ["forwarded"]


# -- Matrix ------------------------------------------------------------------------------------------------------------

ROOM = matrix.MatrixRoom(members={"@ada:x.org": "Ada", "@bob:x.org": "Bob", "@agent:x.org": "agent"})


def quote_matrix(sender: str, content: dict[str, Any], kind: str = "m.room.message") -> TextPiece | None:
    raw = {"type": kind, "sender": sender, "content": content}
    return matrix.parse_quote(raw, sender="@ada:x.org", me="@agent:x.org", room=ROOM)


def test_a_matrix_quote_names_its_author() -> None:
    text = {"msgtype": "m.text", "body": "one"}
    assert quote_matrix("@bob:x.org", text) == TextPiece(
        source="quoted", by="matrix:@bob:x.org", name="Bob", text="one"
    )
    own, agent = quote_matrix("@ada:x.org", text), quote_matrix("@agent:x.org", text)
    assert own is not None
    assert own.own
    assert agent is not None
    assert agent.by == AGENT_ITSELF


@pytest.mark.parametrize("content", [{}, {"body": 7}, {"body": ""}])
def test_an_event_without_text_is_not_quoted(content: dict[str, Any]) -> None:
    assert quote_matrix("@bob:x.org", content) is None
    assert quote_matrix("@bob:x.org", {"ciphertext": "x", "body": "y"}, kind="m.room.encrypted") is None


def test_a_quote_inside_a_quoted_reply_is_left_out() -> None:
    replied = {"body": "> <@eve:x.org> yes\n\nno", "m.relates_to": {"m.in_reply_to": {"event_id": "$1"}}}
    found = quote_matrix("@bob:x.org", replied)
    assert found is not None
    assert found.text == "no"


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_note_about_a_missing_forwarded_file_is_not_the_senders() -> None:
    note = "[a.txt was not stored: it is too large]"
    noted = add_missing_note(read_discord(**make_snapshot("his")), note)
    assert noted.text == ""
    assert noted.pieces[0].text == f"his\n{note}"
    assert add_missing_note(read_discord("mine"), note).text == f"mine\n{note}"


# -- names that look like ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [AGENT_ITSELF, "telegram:1001", "slack:UADA", "discord:1001"])
def test_a_display_name_is_never_taken_for_an_author(name: str) -> None:
    """Anybody may be called like an identity, or like the word for the agent itself."""
    unlinked = {key: it for key, it in SHARED.items() if key != "author_id"} | {"author_name": name}
    found = (
        *read_telegram("x", forward_origin=make_hidden_origin(name)).pieces,
        *read_telegram("x", external_reply={"origin": make_hidden_origin(name)}, quote=QUOTE_OF_ANOTHER).pieces,
        *read_discord("look", embeds=[{"type": "rich", "title": "T", "author": {"name": name}}]).pieces,
        *read_discord("look", embeds=[{"type": "rich", "title": "T", "provider": {"name": name}}]).pieces,
        *read_discord("look", embeds=[{"type": "rich", "title": "T", "url": name}]).pieces,
        *read_slack("look", {"service_name": name, "title": "T"}).pieces,
        *read_slack("", {**unlinked, "is_share": True}).pieces,
        *read_slack("look", unlinked).pieces,
    )
    assert [(piece.by, piece.name) for piece in found] == [("", name)] * 8
    for piece in found:
        assert is_foreign(piece)
        assert f"called {name}" in render_piece(piece)
        assert f"called {name}" in build_piece_origin(piece)
