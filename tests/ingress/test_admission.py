"""Admission: only admitted identities may speak, identities cannot be forged, and a stranger gets one reply an hour."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everhold.config import parse_settings
from everhold.core import pairing
from everhold.core.address import Address, parse_address
from everhold.core.entries import AddressBound, Changed, ChatCommand, ChatLocation, EntryDraft, Heard
from everhold.core.people import IdentityProof
from everhold.errors import InvalidRequest, NotFound
from everhold.ports.platform import SCHEDULED_EVENT, UNPARSED_EVENT, AcceptResult, IncomingMessage, PlatformOffset
from everhold.ports.store import Change, StateNamespace, Step
from tests.ingress.harness import CONFIG, IngressHarness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngressHarness]:
    harness = IngressHarness(tmp_path)
    yield harness
    await harness.store.close()


# -- default deny ------------------------------------------------------------------------------------------------------


async def test_a_listed_identity_may_speak_directly_and_a_stranger_may_not(harness: IngressHarness) -> None:
    assert (await harness.send_and_read("hello")).stamp.person == "fake:1001"
    assert (await harness.send_and_read("hello", sender="7")).stamp.person == "fake:7"
    verdict = await harness.send_message("hello", sender="666")
    assert (verdict.outcome, verdict.session) == ("denied", "")
    assert len(await harness.store.list_sessions()) == 2, "a stranger leaves no session"


async def test_a_denied_message_is_not_delivered_again(harness: IngressHarness) -> None:
    """Only the platform's offset is stored. Otherwise the message would be redelivered at every start."""
    for value in ("7", "8"):
        read = PlatformOffset(key="offset", value=value)
        assert (await harness.send_message("hello", sender="666", offset=read)).outcome == "denied"
        (record,) = await harness.store.list_state_records(StateNamespace.PLATFORM_OFFSET, scope="fake:main")
        assert (record.key, record.value) == ("offset", value)


@pytest.mark.parametrize("name", ["ada", "fake:1001", "root", "1001", "*"])
async def test_a_display_name_admits_nobody(harness: IngressHarness, name: str) -> None:
    assert (await harness.send_message("hello", sender="666", name=name)).outcome == "denied"


@pytest.mark.parametrize("sender", ["ada", "root", "*", "fake:1001"])
async def test_an_id_that_looks_like_a_person_is_not_that_person(harness: IngressHarness, sender: str) -> None:
    assert (await harness.send_message("hello", sender=sender)).outcome == "denied"


async def test_a_removed_account_accepts_no_messages(harness: IngressHarness) -> None:
    harness.settings = harness.settings.model_copy(update={"platforms": {}})
    assert (await harness.send_message("hello")).outcome == "denied"


async def test_an_allow_list_applies_to_its_account_and_chats(harness: IngressHarness) -> None:
    assert (await harness.send_message("hello", sender="7", platform="other")).outcome == "denied"
    assert (await harness.send_message("hello", chat="elsewhere")).outcome == "denied"
    assert (await harness.send_message("hello", chat="room")).outcome == "accepted"
    assert (await harness.send_message("hello", chat="room", sender="666")).outcome == "denied"
    assert (await harness.send_message("hello", chat="open", sender="666")).outcome == "accepted"


async def test_the_log_names_the_id_of_a_denied_group_member(harness: IngressHarness) -> None:
    """The configuration needs this id, and no platform shows it."""
    await harness.send_message("hello", chat="-100200", sender="666")
    (line,) = harness.log.find_events("message.denied")
    assert (line["platform"], line["account"], line["chat"]) == ("fake", "main", "-100200")


async def test_an_owner_may_speak_everywhere(harness: IngressHarness) -> None:
    assert (await harness.send_message("hello", sender="1", chat="elsewhere")).outcome == "accepted"
    assert (await harness.send_message("hello", sender="1")).outcome == "accepted"


PLACES = [("1001", "", True), ("7", "", True), ("666", "", False), ("1001", "room", True), ("666", "room", False)]
PLACES += [("666", "open", True), ("1001", "elsewhere", False), ("1", "elsewhere", True), ("", "room", False)]


@pytest.mark.parametrize("sender, chat, allowed", PLACES)
async def test_who_may_speak_is_told_beforehand_and_nothing_happens(
    harness: IngressHarness, sender: str, chat: str, allowed: bool
) -> None:
    """An adapter asks this before it calls its platform because of a message."""
    place = ChatLocation(platform="fake", account="main", chat=chat or sender, message="1")
    message = IncomingMessage(origin=place, text="hello", sender=sender, kind="group" if chat else "dm")
    assert await harness.admission.can_speak(message) is allowed
    unparsed = IncomingMessage(
        origin=ChatLocation(platform="fake", account="main", chat="unreadable", message="1"),
        text="",
        sender=sender,
        kind="channel",
        event=UNPARSED_EVENT,
        unparsed_chat=chat or sender,
        unparsed_direct=not chat,
    )
    assert await harness.admission.can_speak(unparsed) is allowed
    assert await harness.read_notices() == []
    assert await harness.store.list_state_records(StateNamespace.PAIRING_REQUEST) == []
    assert (await harness.send_message("hello", sender=sender, chat=chat)).outcome == (
        "accepted" if allowed else "denied"
    )


async def test_a_chat_with_another_id_is_the_same_place(harness: IngressHarness) -> None:
    await harness.chat_aliases.add_alias("fake", "room", "moved")
    place = ChatLocation(platform="fake", account="main", chat="moved", message="1")
    assert await harness.admission.can_speak(IncomingMessage(origin=place, text="", sender="7", kind="group"))
    assert not await harness.admission.can_speak(IncomingMessage(origin=place, text="", sender="666", kind="group"))


# -- pairing -----------------------------------------------------------------------------------------------------------


async def code_for(harness: IngressHarness, sender: str = "666", **more: str) -> str:
    await harness.send_message("let me in", sender=sender, **more)
    found = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", (await harness.read_notices())[-1])
    assert found
    return found[0]


async def link(harness: IngressHarness, identity: str, person: str) -> None:
    await harness.admission.people.apply_settings()
    await harness.admission.people.link_identity(identity, person, proof=IdentityProof.OPERATOR, by="operator")


async def test_a_stranger_is_admitted_by_an_approved_code(harness: IngressHarness) -> None:
    code = await code_for(harness, name="Eve")
    (waiting,) = await harness.admission.pairing.list_requests()
    assert (waiting["identity"], waiting["name"]) == ("fake:666", "Eve")
    assert code not in str(waiting), "only the stranger knows the code"
    approved = await harness.admission.pairing.approve_code(code.lower().replace("-", " "))
    assert approved["identity"] == "fake:666"
    assert (await harness.send_message("thank you", sender="666")).outcome == "accepted"
    assert (await harness.send_message("hello", sender="666", chat="room")).outcome == "denied", (
        "a direct chat is all it opens"
    )
    assert (await harness.send_message("hello", sender="666", platform="other")).outcome == "denied", (
        "and of one account"
    )


async def test_a_revoked_identity_is_a_stranger_again_although_it_was_admitted_as_a_person(
    harness: IngressHarness,
) -> None:
    pairing = harness.admission.pairing
    await pairing.approve_code(await code_for(harness), person="ada")
    await harness.send_message("hello", sender="666")
    assert (await harness.store.get_people()).find_label("fake:666") == "ada"
    await pairing.revoke_identity("fake:666")
    assert (await harness.send_message("still here", sender="666")).outcome == "denied"
    assert (await harness.store.get_people()).find_label("fake:666") == ""


async def test_an_identity_that_was_linked_before_admission_stays_linked(harness: IngressHarness) -> None:
    """An old grant does not say which person it made."""
    pairing = harness.admission.pairing
    code = await code_for(harness)
    await link(harness, "fake:666", "ada")
    await pairing.approve_code(code, person="ada")
    await pairing.revoke_identity("fake:666")
    assert (await harness.store.get_people()).find_label("fake:666") == "ada"


async def test_a_code_is_valid_once_and_for_ten_minutes(harness: IngressHarness) -> None:
    code = await code_for(harness)
    await harness.admission.pairing.approve_code(code)
    with pytest.raises(NotFound):
        await harness.admission.pairing.approve_code(code)
    await harness.admission.pairing.revoke_identity("fake:666")
    assert (await harness.send_message("hello", sender="666")).outcome == "denied"
    late = await code_for(harness, sender="667")
    harness.clock.at += 601
    with pytest.raises(InvalidRequest, match="too old"):
        await harness.admission.pairing.approve_code(late)
    assert await harness.admission.pairing.list_requests() == []
    assert (await harness.send_message("hello", sender="667")).outcome == "denied"


async def test_five_wrong_codes_end_guessing_and_void_the_open_codes(harness: IngressHarness) -> None:
    code = await code_for(harness)
    for _ in range(5):
        with pytest.raises(NotFound):
            await harness.admission.pairing.approve_code("AAAA-AAAA")
    with pytest.raises(InvalidRequest, match="too many"):
        await harness.admission.pairing.approve_code(code)
    harness.clock.at += 601
    with pytest.raises(NotFound):
        await harness.admission.pairing.approve_code(code)


async def test_a_stranger_gets_one_reply_an_hour_also_after_a_restart(harness: IngressHarness) -> None:
    for _ in range(5):
        await harness.send_message("hello?", sender="666")
    await harness.read_notices()
    harness.admission = harness.open_admission()
    await harness.send_message("hello?", sender="666")
    assert len(await harness.read_notices()) == 1
    harness.clock.at += 3_601
    await harness.send_message("hello?", sender="666")
    assert len(await harness.read_notices()) == 2


async def test_a_crowd_of_strangers_keeps_nobody_out(harness: IngressHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairing, "MAX_PAIRING_REQUESTS", 60)
    early = await code_for(harness, sender="early")
    for number in range(55):  # so many were enough to keep others out
        await harness.send_message("hello", sender=f"crowd{number}")
    late = await code_for(harness, sender="late")
    assert (await harness.admission.pairing.approve_code(early))["identity"] == "fake:early"
    assert (await harness.admission.pairing.approve_code(late))["identity"] == "fake:late"


async def test_the_number_of_open_pairing_codes_is_limited(
    harness: IngressHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairing, "MAX_PAIRING_REQUESTS", 20)
    first = await code_for(harness, sender="first")
    for number in range(30):
        harness.clock.at += 0.001
        await harness.send_message("hello", sender=f"9{number}")
    assert len(await harness.store.list_state_records(StateNamespace.PAIRING_REQUEST)) == 20
    with pytest.raises(NotFound):
        await harness.admission.pairing.approve_code(first)
    again = await code_for(harness, sender="first")  # at once, because the crowd took the code away
    assert (await harness.admission.pairing.approve_code(again))["identity"] == "fake:first"
    harness.clock.at += 4_000
    await harness.send_message("hello", sender="950")
    kept = await harness.store.list_state_records(StateNamespace.PAIRING_REQUEST)
    assert len(kept) == 1, "strangers are forgotten"


async def test_the_name_of_a_stranger_is_erased_with_the_code(harness: IngressHarness) -> None:
    async def read_requests() -> str:
        records = await harness.store.list_state_records(StateNamespace.PAIRING_REQUEST)
        return " ".join(record.value for record in records)

    used = await code_for(harness, sender="used", name="Canary One")
    await code_for(harness, sender="expired", name="Canary Two")
    assert "Canary One" in await read_requests()
    await harness.admission.pairing.approve_code(used)
    assert "Canary One" not in await read_requests()
    harness.clock.at += 601
    await harness.admission.pairing.tidy_requests()
    assert "Canary" not in await read_requests()
    harness.clock.at += 3_601
    await harness.admission.pairing.tidy_requests()
    assert await read_requests() == ""


async def test_strangers_in_groups_bots_and_accounts_without_pairing_get_no_reply(harness: IngressHarness) -> None:
    await harness.send_message("hello", sender="666", chat="room")
    await harness.send_message("hello", sender="667", bot=True)
    harness.settings = harness.settings.model_copy(
        update={"access": harness.settings.access.model_copy(update={"pairing": False})}
    )
    await harness.send_message("hello", sender="668")
    assert await harness.read_notices() == []


async def test_an_identity_approved_with_a_name_is_that_person(harness: IngressHarness) -> None:
    await harness.admission.pairing.approve_code(await code_for(harness), person="ada")
    assert (await harness.send_and_read("it is me", sender="666")).stamp.person == "fake:666", "the log has identities"
    assert (await harness.store.get_people()).find_proven_label("fake:666") == "ada"


async def test_no_pairing_code_is_stored_in_readable_form(harness: IngressHarness, tmp_path: Path) -> None:
    code = await code_for(harness)
    await harness.store.close()
    for file in tmp_path.iterdir():  # noqa: ASYNC240  # nothing else is waiting
        assert pairing.normalize_code(code).encode() not in file.read_bytes().replace(b"-", b"")
    assert code not in str(harness.log.lines)
    harness.store = harness.store.open(tmp_path / "log.db", chance=harness.admission._chance)


@given(st.binary(min_size=64, max_size=64))
def test_a_code_is_readable_and_uniformly_random(chance: bytes) -> None:
    try:
        code = pairing.make_code(chance)
    except AssertionError:
        return  # Hypothesis may draw sixty bytes that are all rejected; a real random source does not
    assert re.fullmatch(r"[A-HJKMNP-TV-Z2-9]{4}-[A-HJKMNP-TV-Z2-9]{4}", code)
    assert not set(code) & set("ILOU01")


# -- one person, two platforms -----------------------------------------------------------------------------------------


async def said(harness: IngressHarness, text: str, **more: str) -> str:
    before = len(await harness.read_notices())
    await harness.send_message(text, **more)
    now = await harness.read_notices()
    return now[-1] if len(now) > before else ""


def code_in(text: str) -> str:
    found = re.search(r"/link ([A-Z2-9]{4}-[A-Z2-9]{4})", text)
    assert found, text
    return found[1]


async def test_two_identities_are_linked_once_both_have_confirmed(harness: IngressHarness) -> None:
    first = code_in(await said(harness, "/link"))
    await harness.send_message(f"/link {first}", sender="55", platform="other")
    await harness.read_notices()
    second = code_in(harness.other.shown_messages[-1].text)
    assert (await harness.store.get_people()).find_label("other:55") == "", "one side alone proves nothing"
    await harness.send_message(f"/link {second}")
    assert (await harness.store.get_people()).find_label("other:55") == "ada"
    assert (await harness.send_and_read("me again", sender="55", platform="other")).stamp.person == "other:55"


async def test_a_link_does_not_begin_where_others_read_the_code(harness: IngressHarness) -> None:
    for text in ("/link", "/link AAAA-BBBB"):
        heard = await harness.send_and_read(text, chat="room", addressed=True)
        assert heard.command is not None
        assert heard.command.name == "link", "the command worker refuses it"
    await harness.read_notices()
    assert not await harness.store.list_state_records(StateNamespace.IDENTITY_LINK)
    assert not harness.fake.shown_messages


async def test_only_the_identity_that_began_a_link_can_confirm_it(harness: IngressHarness) -> None:
    first = code_in(await said(harness, "/link"))
    await harness.send_message(f"/link {first}", sender="55", platform="other")
    await harness.read_notices()
    second = code_in(harness.other.shown_messages[-1].text)
    await harness.send_message(f"/link {second}", sender="7")
    await harness.send_message(f"/link {second}", sender="55", platform="other")
    people = await harness.store.get_people()
    assert people.find_label("other:55") == ""
    assert not people.is_same_person("fake:7", "other:55"), "nor does the code link whoever sends it"


async def test_an_identity_cannot_be_linked_by_another_person(harness: IngressHarness) -> None:
    first = code_in(await said(harness, "/link", sender="7"))
    assert "You are ada here" in await said(harness, f"/link {first}")
    assert (await harness.store.get_people()).find_label("fake:7") == ""


async def test_a_stranger_who_guesses_link_codes_gets_no_reply(harness: IngressHarness) -> None:
    code_in(await said(harness, "/link"))
    before = len(await harness.read_notices())
    for _ in range(10):
        await harness.send_message("/link AAAA-AAAA", sender="666")
    assert len(await harness.read_notices()) == before


# -- groups ------------------------------------------------------------------------------------------------------------


def with_groups(**groups: object) -> str:
    text = ", ".join(f"{key}: {str(value).lower()}" for key, value in groups.items())
    return CONFIG.replace("chats: {watched: {}}", f"groups: {{{text}}}")


async def test_chatter_is_stored_only_in_observed_chats(harness: IngressHarness, tmp_path: Path) -> None:
    assert (await harness.send_message("just talking", chat="room", addressed=False)).outcome == "ignored"
    assert await harness.store.list_sessions() == []
    (tmp_path / "b").mkdir()
    watching = IngressHarness(tmp_path / "b", with_groups(observe=True))
    kept = await watching.send_and_read("just talking", chat="room", addressed=False)
    assert not kept.asks
    assert (await watching.send_message("me too", chat="room", sender="666", addressed=False)).outcome == "denied"
    assert (await watching.send_and_read("you there?", chat="room")).asks
    await watching.store.close()


async def test_a_chat_can_have_its_own_agent_sessions_and_settings(tmp_path: Path) -> None:
    config = CONFIG.replace(
        "chats: {watched: {}}", "chats: {room: {agent: coder, sessions: {group: shared}, groups: {answer: always}}}"
    )
    harness = IngressHarness(tmp_path, config)
    heard = await harness.send_and_read("anybody?", chat="room", addressed=False)
    assert heard.asks
    assert heard.stamp.address == "agent:coder:fake/main:group:room"
    assert heard.stamp.audience == ("chat:agent:coder:fake/main:group:room",)
    other = await harness.send_and_read("hello", chat="open")
    assert other.stamp.address == "agent:main:fake:group:open:person:1001"
    await harness.store.close()


async def test_a_message_has_the_role_of_its_sender_in_that_chat(harness: IngressHarness) -> None:
    async def role(**more: Any) -> str:
        return (await harness.send_and_read("hello", **more)).role.label

    assert await role() == "member"
    assert await role(sender="1") == "owner"
    assert await role(sender="1", chat="elsewhere") == "owner"
    assert await role(sender="7", chat="room") == "member"
    assert await role(sender="666", chat="open") == "stranger"
    assert await role(sender="7", chat="open") == "member", "the account's list of direct messages names this identity"
    await link(harness, "fake:667", "root")
    harness.settings = parse_settings(CONFIG.replace("owners: [root]", "owners: [ada]"))
    assert await role(sender="667", chat="open") == "known"


async def test_an_owner_of_an_agent_an_account_or_a_chat_is_one_there_only(harness: IngressHarness) -> None:
    async def role(config: str, **more: Any) -> str:
        harness.settings = parse_settings(config)
        verdict = await harness.send_message("hello", sender="1", **more)
        if verdict.outcome == "denied":
            return "denied"
        entry = await harness.store.get_entry(verdict.session, verdict.seq)
        assert isinstance(entry.body, Heard)
        return entry.body.role.label

    config = CONFIG.replace("owners: [root]", "owners: []")
    assert await role(config, chat="room") == "denied"
    agent = config.replace("main: {}, coder", "main: {owners: [root]}, coder")
    assert await role(agent, chat="room") == "owner"
    assert await role(agent) == "owner"
    assert (
        await role(agent.replace("fake:\n    main:", "fake:\n    main:\n      agent: coder"), chat="room") == "denied"
    )
    account = config.replace("chats: {watched: {}}", "owners: [root]")
    assert await role(account, chat="room") == "owner"
    assert await role(account, platform="other") == "denied"
    chat = config.replace("chats: {watched: {}}", "chats: {room: {owners: [root]}}")
    assert await role(chat, chat="room") == "owner"
    assert await role(chat, chat="open") == "known"
    assert await role(chat) == "denied", "in direct chats it gives nothing"


async def test_a_paired_identity_is_a_member_where_a_star_admits_it(harness: IngressHarness) -> None:
    await harness.admission.pairing.approve_code(await code_for(harness))
    assert (await harness.send_and_read("hello", sender="666")).role.label == "member"
    assert (await harness.send_and_read("hello", sender="666", chat="open")).role.label == "member"


async def test_a_stranger_cannot_end_a_halt(harness: IngressHarness) -> None:
    await harness.send_message("/halt", chat="open", sender="666")
    assert not (await harness.send_and_read("hello", chat="open")).asks, "anybody there may silence the agents"
    await harness.send_message("/wake", chat="open", sender="666")
    await harness.send_message("!wake", chat="open", sender="666")
    assert not (await harness.send_and_read("hello", chat="open")).asks
    await harness.send_message("/wake", chat="open")
    assert (await harness.send_and_read("hello", chat="open")).asks


async def test_a_command_for_another_bot_is_text(tmp_path: Path) -> None:
    harness = IngressHarness(tmp_path, with_groups(observe=True))
    assert (await harness.send_and_read("/new", chat="room", addressed=False)).command is None
    await harness.store.close()


# -- bots --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [".", "..", "ok", "👍", "⚙ I could not answer: the model is down"])
async def test_a_bot_s_acknowledgement_or_failure_is_not_answered(harness: IngressHarness, text: str) -> None:
    assert not (await harness.send_and_read(text, sender="7", bot=True)).asks
    assert (await harness.send_and_read(text, sender="7")).asks, "a human is"


async def test_an_automatic_notice_is_stored_and_not_answered(harness: IngressHarness) -> None:
    assert not (await harness.send_and_read("your build failed", sender="7", notice=True)).asks


async def test_a_loop_is_stopped_without_a_hop_count_of_the_platform(harness: IngressHarness) -> None:
    from everhold.core.entries import EntryDraft, Heard, Said
    from everhold.ports.store import Change, Step

    asked = 0
    for turn in range(40):
        verdict = await harness.send_message(f"and then? {turn}", sender="7", bot=True)
        entry = await harness.store.get_entry(verdict.session, verdict.seq)
        assert isinstance(entry.body, Heard)
        if not entry.body.asks:
            break
        asked += 1
        said = Said(text="go on", to=entry.body.origin, hops=entry.body.hops + 1)
        await harness.store.commit(
            Change(
                step=Step.END,
                session=verdict.session,
                at=harness.clock.at,
                entries=(EntryDraft(body=said, author="agent:main"),),
            )
        )
    assert asked == harness.settings.loops.max_hops
    (loop,) = harness.admission.describe()["loops"]
    assert (loop["agent"], loop["chat"], loop["hops"]) == ("main", "7", 8)
    assert (await harness.send_and_read("I am human", sender="7")).asks
    assert harness.admission.describe()["loops"] == [], "the loop is not listed any more"
    assert (await harness.send_and_read("so?", sender="7", bot=True)).asks, "a human spoke, so the agent may answer"


async def test_hop_counts_of_the_platform_are_used(harness: IngressHarness) -> None:
    assert (await harness.send_and_read("hi", sender="7", bot=True, hops=7)).asks
    assert not (await harness.send_and_read("hi", sender="7", bot=True, hops=8)).asks


@pytest.mark.parametrize("halt, wake", [("!halt", "!wake"), ("/halt", "/wake"), (" !halt\n", "/wake@bot")])
async def test_a_halt_word_silences_a_chat_until_a_human_lifts_it(
    harness: IngressHarness, halt: str, wake: str
) -> None:
    order = await harness.send_and_read(halt, chat="room", addressed=False)
    assert order.command is not None
    assert order.command.name == "halt"
    harness.admission = harness.open_admission()
    assert not (await harness.send_and_read("hello?", chat="room")).asks, "also after a restart"
    assert not (await harness.send_and_read("hello?", chat="room", sender="7", bot=True)).asks
    assert (await harness.send_and_read("hello?", chat="open")).asks, "another chat is another matter"
    assert (await harness.send_and_read("!wake", chat="room", sender="7", bot=True)).command is None, "no bot lifts it"
    await harness.admission.shared_records.refresh()
    assert [it["chat"] for it in harness.admission.describe()["halted"]] == ["room"]
    await harness.send_and_read(wake, chat="room", addressed=False)
    assert (await harness.send_and_read("hello?", chat="room")).asks
    assert harness.admission.describe()["halted"] == []


@pytest.mark.parametrize("platform", ["terminal", "http"])
@pytest.mark.parametrize("text, word", [("/halt", "halt"), ("!halt", "halt"), ("/wake", "wake"), ("/link", "link")])
async def test_halt_and_link_are_not_available_in_terminal_and_api_chats(
    harness: IngressHarness, platform: str, text: str, word: str
) -> None:
    heard = await harness.send_and_read(text, platform=platform)
    assert heard.command == ChatCommand(name="alone", argument=word)
    assert (await harness.send_and_read("hello", platform=platform)).asks
    assert harness.admission.describe()["halted"] == []


@pytest.mark.parametrize("text", ["/halt", "/wake", "/link", "/link AAAA-BBBB", "/new"])
async def test_a_schedule_gives_no_command(harness: IngressHarness, text: str) -> None:
    """It sends its text as a message, whatever the text is."""
    for where in ({}, {"chat": "room"}):
        result = await harness.send_message(text, event=SCHEDULED_EVENT, addressed=True, **where)
        assert result.outcome == "accepted"
        entry = await harness.store.get_entry(result.session, result.seq)
        assert isinstance(entry.body, Heard)
        assert (entry.body.command, entry.body.text, entry.body.scheduled) == (None, text, True)
    assert not await harness.admission.is_halted("fake", "room")
    assert not await harness.store.list_state_records(StateNamespace.IDENTITY_LINK)
    assert not harness.fake.shown_messages


async def test_a_redelivered_halt_is_not_applied_again(harness: IngressHarness) -> None:
    await harness.send_and_read("!halt", chat="room", id="h")
    await harness.send_and_read("!wake", chat="room", id="r")
    assert (await harness.send_message("!halt", chat="room", id="h")).outcome == "duplicate"
    assert (await harness.send_and_read("hello?", chat="room")).asks, "a human lifted it since"
    await harness.send_and_read("!halt", chat="room", id="h2")
    assert (await harness.send_message("!wake", chat="room", id="r")).outcome == "duplicate"
    assert not (await harness.send_and_read("hello?", chat="room")).asks, "and a repeat lifts nothing"


async def test_a_halt_that_was_applied_but_not_stored_is_stored_on_redelivery(harness: IngressHarness) -> None:
    origin = ChatLocation(platform="fake", account="main", chat="room", message="h")
    await harness.admission(
        IncomingMessage(origin=origin, text="!halt", sender="1001", kind="group")
    )  # and here it crashed
    harness.admission = harness.open_admission()
    assert (await harness.send_message("!halt", chat="room", id="h")).outcome == "accepted"
    assert not (await harness.send_and_read("hello?", chat="room")).asks


async def test_a_chat_with_a_new_id_keeps_its_session(harness: IngressHarness) -> None:
    before = await harness.send_message("hello", chat="room")
    assert (await harness.send_message("hello", chat="hall")).outcome == "denied"
    await harness.chat_aliases.add_alias("fake", "room", "hall")
    for _ in range(2):
        after = await harness.send_message("hello", chat="hall")
        assert (after.outcome, after.session) == ("accepted", before.session)
        assert (await harness.send_message("hello", chat="hall", sender="666")).outcome == "denied"
        entry = await harness.store.get_entry(after.session, after.seq)
        assert isinstance(entry.body, Heard)
        assert entry.body.origin.chat == "hall", "the reply uses the new id"
        first = await harness.store.get_entry(before.session, before.seq)
        assert isinstance(first.body, Heard)
        assert entry.body.stamp == first.body.stamp, "the memory keeps the same session name"
        harness.admission = harness.open_admission()
        await harness.chat_aliases.add_alias("fake", "room", "hall")  # platforms report it more than once
    await harness.chat_aliases.add_alias("fake", "hall", "castle")
    assert (await harness.send_message("hello", chat="castle")).session == before.session
    assert await harness.store.verify() == []


async def test_a_halt_stays_and_is_lifted_under_the_chat_s_new_id(harness: IngressHarness) -> None:
    await harness.send_and_read("!halt", chat="room")
    await harness.chat_aliases.add_alias("fake", "room", "hall")
    assert not (await harness.send_and_read("hello?", chat="hall")).asks
    await harness.send_and_read("!wake", chat="hall")
    assert (await harness.send_and_read("hello?", chat="hall")).asks
    assert harness.admission.describe()["halted"] == []


async def test_chat_settings_apply_under_the_old_and_the_new_id(harness: IngressHarness) -> None:
    harness.settings = parse_settings(CONFIG.replace("room: [ada", "hall: [ada").replace("watched", "room"))
    await harness.chat_aliases.add_alias("fake", "room", "hall")
    assert (await harness.send_message("hello", chat="hall")).outcome == "accepted"
    assert (await harness.send_message("hello", chat="hall", sender="666")).outcome == "denied"


async def test_a_stranger_cannot_halt_a_chat(harness: IngressHarness) -> None:
    assert (await harness.send_message("!halt", chat="room", sender="666")).outcome == "denied"
    assert (await harness.send_and_read("hello?", chat="room")).asks


async def test_a_halt_applies_to_every_session_of_its_chat(harness: IngressHarness) -> None:
    bob = await harness.send_message("do something long", chat="room", sender="7")
    elsewhere = await harness.send_message("do something long", chat="open", sender="7")
    await harness.send_and_read("!halt", chat="room")
    texts = [entry.body.text for entry in await harness.store.list_entries(bob.session)]  # type: ignore[union-attr]
    assert texts == ["do something long", "!halt"]
    assert len(await harness.store.list_entries(elsewhere.session)) == 1


# -- a direct chat that another one takes over -------------------------------------------------------------------------


async def alone(harness: IngressHarness, text: str, *, sender: str, chat: str = "!room", **more: Any) -> AcceptResult:
    """Send a message alone with the agent, on a platform where the other person in a chat may change."""
    verdict = await harness.send_message(text, sender=sender, chat=chat, kind="dm", can_change_owner=True, **more)
    assert verdict.outcome == "accepted", verdict
    return verdict


async def test_a_direct_chat_belongs_to_its_first_person(harness: IngressHarness) -> None:
    """Ada leaves, and Eve is alone with the agent in the same chat. She sees nothing that Ada wrote."""
    ada = await alone(harness, "my secret", sender="1001")
    eve = await alone(harness, "hello", sender="7")
    assert eve.session != ada.session
    entry = await harness.store.get_entry(eve.session, eve.seq)
    assert isinstance(entry.body, Heard)
    assert entry.body.stamp.audience == ("person:fake:7",)
    harness.admission = harness.open_admission()
    harness.accept._known_chats.clear()
    assert (await alone(harness, "I am back", sender="1001")).session == ada.session
    assert (await alone(harness, "me too", sender="7")).session == eve.session
    assert (await alone(harness, "elsewhere", sender="7", chat="!other")).session not in (ada.session, eve.session)


async def test_an_older_direct_chat_belongs_to_its_first_speaker(harness: IngressHarness) -> None:
    """The log shows who spoke first, so an older session keeps its owner after an update."""
    old = await harness.send_message("my secret", chat="!room", kind="dm")
    assert await harness.store.list_state_records(StateNamespace.DM_OWNER) == []
    assert (await alone(harness, "hello", sender="7")).session != old.session
    assert (await alone(harness, "I am back", sender="1001")).session == old.session


async def test_a_direct_chat_bound_to_an_older_session_belongs_to_the_session_s_owner(harness: IngressHarness) -> None:
    """Ada resumed a session from another chat here, before DM owners were stored."""
    began = await harness.send_message("my secret")
    here = await harness.send_message("/resume", chat="!room", kind="dm")
    entry = await harness.store.get_entry(here.session, here.seq)
    assert isinstance(entry.body, Heard)
    bound = AddressBound(address=entry.body.stamp.address, previous=here.session, by="person:ada")
    draft = EntryDraft(body=Changed(change=bound), author="person:ada")
    await harness.store.commit(Change(step=Step.BACKLINK, session=began.session, at=harness.clock.at, entries=(draft,)))
    harness.accept._known_chats.clear()
    assert (await alone(harness, "hello", sender="7")).session not in (began.session, here.session)
    assert (await alone(harness, "I am back", sender="1001")).session == began.session


async def test_a_direct_chat_keeps_its_owner_when_the_owner_is_linked_or_the_id_changes(
    harness: IngressHarness,
) -> None:
    mine = await alone(harness, "hello", sender="7")
    await harness.admission.people.name_person("fake:7", "grace", by="operator")
    assert (await alone(harness, "I am Grace now", sender="7")).session == mine.session
    await link(harness, "fake:1001b", "ada")
    ada = await alone(harness, "hello", sender="1001", chat="!hers")
    harness.settings = parse_settings(CONFIG.replace('["fake:1001"]', '["fake:1001", "fake:1001b"]'))
    assert (await alone(harness, "from my new account", sender="1001b", chat="!hers")).session == ada.session


async def test_a_denied_sender_cannot_become_the_owner_of_a_chat(harness: IngressHarness) -> None:
    refused = await harness.send_message("hello", sender="666", chat="!room", kind="dm", can_change_owner=True)
    assert refused.outcome == "denied"
    first = await alone(harness, "hello", sender="1001")
    entry = await harness.store.get_entry(first.session, first.seq)
    assert isinstance(entry.body, Heard)
    assert parse_address(entry.body.stamp.address).person == ""


async def test_a_thread_in_a_direct_chat_belongs_to_the_chat_s_owner(harness: IngressHarness) -> None:
    old = await harness.send_message("my secret", chat="!room", kind="dm")

    async def inside(sender: str) -> Address:
        harness.said += 1
        place = ChatLocation(platform="fake", account="main", chat="!room", thread="t", message=str(harness.said))
        verdict = await harness.accept(
            IncomingMessage(origin=place, text="hello", sender=sender, kind="dm", can_change_owner=True)
        )
        entry = await harness.store.get_entry(verdict.session, verdict.seq)
        assert isinstance(entry.body, Heard)
        return parse_address(entry.body.stamp.address)

    assert (await inside("7")).person == "7"
    assert (await inside("1001")).person == ""
    assert (await alone(harness, "and outside", sender="1001")).session == old.session


# -- crashes and concurrent changes ------------------------------------------------------------------------------------


class CrashError(Exception):
    """The process ends here."""


def crash_after(harness: IngressHarness, commits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process end before the commit that follows so many others."""
    left, real = [commits], harness.store.commit

    async def commit(change: Change) -> Any:
        if not left[0]:
            raise CrashError
        left[0] -= 1
        return await real(change)

    monkeypatch.setattr(harness.store, "commit", commit)


@pytest.mark.parametrize("commits", [0, 1, 2])
async def test_a_crash_never_leaves_a_grant_without_its_person(
    harness: IngressHarness, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = await code_for(harness)
    with monkeypatch.context() as patch, contextlib.suppress(CrashError):
        crash_after(harness, commits, patch)
        await harness.admission.pairing.approve_code(code, person="ada")
    harness.admission = harness.open_admission()
    if not await harness.admission.pairing.list_grants():
        await harness.admission.pairing.approve_code(code, person="ada")
    assert (await harness.store.get_people()).find_proven_label("fake:666") == "ada"
    assert (await harness.send_message("hello", sender="666")).outcome == "accepted"


@pytest.mark.parametrize("commits", [0, 1, 2])
async def test_a_crash_never_leaves_a_link_without_its_grant_after_a_revocation(
    harness: IngressHarness, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.admission.pairing.approve_code(await code_for(harness), person="ada")
    with monkeypatch.context() as patch, contextlib.suppress(CrashError):
        crash_after(harness, commits, patch)
        await harness.admission.pairing.revoke_identity("fake:666")
    harness.admission = harness.open_admission()
    granted = bool(await harness.admission.pairing.list_grants())
    assert ((await harness.store.get_people()).find_label("fake:666") == "ada") is granted


@pytest.mark.parametrize("commits", [0, 1, 2])
async def test_a_crash_never_uses_up_the_code_of_a_link_without_linking(
    harness: IngressHarness, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = code_in(await said(harness, "/link"))
    await harness.send_message(f"/link {first}", sender="55", platform="other")
    await harness.read_notices()
    second = code_in(harness.other.shown_messages[-1].text)
    with monkeypatch.context() as patch, contextlib.suppress(CrashError):
        crash_after(harness, commits, patch)
        await harness.send_message(f"/link {second}")
    harness.admission = harness.open_admission()
    await harness.send_message(f"/link {second}", id="again")
    assert (await harness.store.get_people()).find_proven_label("other:55") == "ada"


async def test_a_code_is_approved_although_people_change_at_the_same_time(
    harness: IngressHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, real, came = await code_for(harness), harness.store.commit, list[int]()

    async def commit(change: Change) -> Any:
        if change.state_writes and len(came) < 20:
            came.append(1)
            await harness.admission.people.require_person(f"fake:9{len(came)}")  # a stranger comes first
        return await real(change)

    monkeypatch.setattr(harness.store, "commit", commit)
    await harness.admission.pairing.approve_code(code, person="ada")
    assert len(came) == 20
    assert (await harness.store.get_people()).find_label("fake:666") == "ada"


async def test_two_names_are_not_joined_if_one_was_given_at_the_same_time(
    harness: IngressHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check belongs to the commit that it allows."""
    people, real, came = harness.admission.people, harness.store.commit, list[int]()
    await link(harness, "fake:55", "ada")
    await people.require_person("fake:66")

    async def commit(change: Change) -> Any:
        if change.people and not came:
            came.append(1)
            await people.name_person("fake:66", "grace", by="operator")
        return await real(change)

    monkeypatch.setattr(harness.store, "commit", commit)
    with pytest.raises(InvalidRequest, match="grace"):
        await people.join_identities("fake:55", "fake:66", by="fake:55")
    assert (await harness.store.get_people()).find_label("fake:66") == "grace"


async def test_an_older_configuration_is_never_applied_after_a_newer_one(
    harness: IngressHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings change while the people of an earlier revision are being stored."""
    people, real = harness.admission.people, harness.store.commit
    newest = parse_settings(CONFIG.replace('"fake:1001"', '"fake:1003"'))
    waiting: list[asyncio.Task[Any]] = []
    await people.apply_settings()

    async def commit(change: Change) -> Any:
        if change.people and not waiting:
            waiting.append(asyncio.create_task(people.apply_settings()))  # it reads the settings of this moment
            await asyncio.sleep(0)
            harness.settings = newest
            waiting.append(asyncio.create_task(people.apply_settings()))
            await asyncio.sleep(0)
        return await real(change)

    monkeypatch.setattr(harness.store, "commit", commit)
    harness.settings = parse_settings(CONFIG.replace('"fake:1001"', '"fake:1002"'))
    await people.apply_settings()
    assert [await it for it in waiting] == [newest, newest]
    known = await harness.store.get_people()
    assert (known.find_label("fake:1003"), known.find_label("fake:1002"), known.find_label("fake:1001")) == (
        "ada",
        "",
        "",
    )


async def test_an_edit_takes_effect_at_the_next_message(harness: IngressHarness) -> None:
    assert (await harness.send_message("hello", sender="555")).outcome == "denied"
    harness.settings = parse_settings(CONFIG.replace('"fake:1001"', '"fake:1001", "fake:555"'))
    assert (await harness.send_message("hello", sender="555")).outcome == "accepted"
    harness.settings = parse_settings(CONFIG)
    assert (await harness.send_message("hello", sender="555")).outcome == "denied"


async def test_both_sides_of_a_link_are_proven_and_a_nick_counts_from_then_on(harness: IngressHarness) -> None:
    people = harness.admission.people
    await people.require_person("irc:eve")
    await people.require_person("fake:7")
    await people.join_identities("irc:eve", "fake:7", by="irc:eve")
    known = await harness.store.get_people()
    assert known.identities["irc:eve"].is_proven
    assert known.identities["fake:7"].is_proven
    assert known.identities["irc:eve"].since == harness.clock.at


@pytest.mark.parametrize("person", ["root", "fake:7"])
async def test_an_approval_does_not_overrule_the_configuration(harness: IngressHarness, person: str) -> None:
    code = await code_for(harness)
    harness.settings = parse_settings(CONFIG.replace('"fake:1001"', '"fake:1001", "fake:666"'))
    await harness.admission.people.apply_settings()
    with pytest.raises(InvalidRequest, match=r"by config\.yaml"):
        await harness.admission.pairing.approve_code(code, person=person)
    assert (await harness.store.get_people()).find_label("fake:666") == "ada"
    assert await harness.admission.pairing.list_grants() == [], "nothing of it was done"
    await harness.admission.pairing.approve_code(code, person="ada")
    assert (await harness.store.get_people()).identities["fake:666"].proof == IdentityProof.CONFIG


async def test_a_name_does_not_take_an_identity_that_another_person_is_given(harness: IngressHarness) -> None:
    """The terminal and HTTP identities of a name follow from it, unless the configuration gives them to somebody."""
    harness.settings = parse_settings(CONFIG.replace('["fake:1001"]', '["fake:1001", "http:root"]'))
    await harness.admission.people.apply_settings()
    people = await harness.store.get_people()
    assert (people.find_label("http:root"), people.find_label("local:root")) == ("ada", "root")
