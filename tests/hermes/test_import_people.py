"""The people and places of an import: identities and addresses as live messages have them, owners, peers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Heard, Noted
from everhold.core.people import PeopleDirectory
from everhold.engine.facts import FactCache
from everhold.errors import InvalidRequest
from everhold.ports.store import Change, PeerRecord, Step
from everhold.stores.sqlite import SqliteStore
from tests.hermes.built_home import BuiltHermesHome
from tests.hermes.test_doctor import healthy
from tests.hermes.test_import import ME, ImportTarget, place

__all__ = ["place"]  # a fixture


def read_people(place: ImportTarget) -> PeopleDirectory:
    people: PeopleDirectory = place.query_store(lambda store: store.get_people())
    return people


def read_peers(place: ImportTarget) -> list[PeerRecord]:
    peers: list[PeerRecord] = place.query_store(lambda store: store.list_peers())
    return peers


def add_session(built: BuiltHermesHome, key: str, **columns: Any) -> None:
    origin = columns.pop("origin", {})
    session = built.add_session(f"s-{len(key)}-{key[-8:]}", session_key=key, origin_json=json.dumps(origin), **columns)
    built.add_exchanges(session, "a")


# -- addresses and identities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key, columns, address, identity",
    [
        ("agent:main:telegram:dm:1001", {"source": "telegram", "chat_type": "dm", "chat_id": "1001"},
         "telegram:dm:1001", "telegram:1001"),
        ("agent:main:telegram:group:-5:7", {"source": "telegram", "chat_type": "group", "chat_id": "-5",
         "user_id": "7"}, "telegram:group:-5:person:7", "telegram:7"),
        ("agent:main:telegram:group:-5:42", {"source": "telegram", "chat_type": "group", "chat_id": "-5",
         "thread_id": "42", "user_id": "7"}, "telegram:group:-5:thread:42", ""),
        ("agent:main:telegram:forum:-5:1", {"source": "telegram", "chat_type": "forum", "chat_id": "-5",
         "thread_id": "1", "user_id": "7"}, "telegram:group:-5", ""),
        ("agent:main:discord:group:55:7", {"source": "discord", "chat_type": "group", "chat_id": "55",
         "user_id": "7"}, "discord:channel:55:person:7", "discord:7"),
        ("agent:main:discord:thread:66:66", {"source": "discord", "chat_type": "thread", "chat_id": "66",
         "thread_id": "66", "user_id": "7", "origin": {"parent_chat_id": "55"}}, "discord:channel:55:thread:66", ""),
        ("agent:main:slack:group:C1:1700.1", {"source": "slack", "chat_type": "group", "chat_id": "C1",
         "thread_id": "1700.1", "user_id": "U1"}, "slack:channel:C1:thread:1700.1", ""),
        ("agent:main:slack:dm:D1", {"source": "slack", "chat_type": "dm", "chat_id": "D1", "user_id": "U1"},
         "slack:dm:D1", "slack:U1"),
        ("agent:main:matrix:dm:!r:x.org", {"source": "matrix", "chat_type": "dm", "chat_id": "!r:x.org",
         "user_id": "@ada:x.org"}, "matrix:dm:%21r%3Ax.org", "matrix:@ada:x.org"),
        ("agent:main:signal:group:g:uuid-1", {"source": "signal", "chat_type": "group", "chat_id": "g",
         "user_id": "+491", "origin": {"user_id_alt": "uuid-1"}}, "signal:group:g:person:+491", "signal:+491"),
        ("agent:main:irc:dm:ada", {"source": "irc", "chat_type": "dm", "chat_id": "ada", "user_id": "ada"},
         "irc:dm:ada", "irc:ada"),
    ],
)  # fmt: skip
def test_a_chat_has_the_address_and_the_sender_of_its_next_message(
    tmp_path: Path, place: ImportTarget, key: str, columns: dict[str, Any], address: str, identity: str
) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    add_session(built, key, **columns)
    built.close()
    place.run_import(tmp_path / "there")
    assert len(place.read_context(f"agent:main:{address}")) == 2
    (stamp,) = {body.stamp for *_, body, _ in place.read_all_entries() if isinstance(body, Heard)}
    assert stamp.address == f"agent:main:{address}"
    if identity:
        assert stamp.person == identity
        assert (f"person:{identity}" in stamp.audience) is (":dm:" in address or ":person:" in address)
    else:
        assert stamp.person.startswith("imported:main/"), "several people speak there, and nobody knows who said what"
        assert stamp.audience == (f"chat:agent:main:{address}",)


def test_a_chat_that_only_the_routing_names_is_found(tmp_path: Path, place: ImportTarget) -> None:
    """Older versions have the chat's key only in sessions.json."""
    built = BuiltHermesHome(tmp_path / "there", version=5)
    built.add_exchanges(built.add_session("old", source="telegram", user_id="1001"), "a")
    built.close()
    (tmp_path / "there" / "sessions").mkdir()
    key = "agent:main:telegram:dm:1001"
    origin = {"platform": "telegram", "chat_id": "1001", "chat_type": "dm", "user_id": "1001"}
    (tmp_path / "there" / "sessions" / "sessions.json").write_text(
        json.dumps({key: {"session_id": "old", "origin": origin}})
    )
    place.run_import(tmp_path / "there")
    assert place.read_context(key)[0] == ("user", "question a")


def test_every_identity_gets_a_person_and_a_second_id_is_linked(tmp_path: Path, place: ImportTarget) -> None:
    built = healthy(tmp_path / "there")
    signal = {"source": "signal", "chat_type": "dm", "chat_id": "+491", "user_id": "+491"}
    add_session(built, "agent:main:signal:dm:+491", **signal, origin={"user_id_alt": "uuid-1"})
    built.close()
    place.run_import(tmp_path / "there")
    people = read_people(place)
    expected = {"telegram:1001", "telegram:3003", "signal:+491", "signal:uuid-1", "imported:main/errand"}
    assert {it.identity for it in people.identities.values() if it.proof == "import"} == expected
    assert people.is_same_person("signal:+491", "signal:uuid-1")
    assert len({people.identities[it].person for it in expected}) == 4
    assert people.find_proven_label("signal:uuid-1") == ""
    before = people.epoch
    place.run_import(tmp_path / "there")
    assert read_people(place).epoch == before, "a second import adds nothing"


def test_a_second_id_never_takes_somebody_who_is_known(tmp_path: Path, place: ImportTarget) -> None:
    """A home could name another person's id as the second one."""
    built = BuiltHermesHome(tmp_path / "there")
    add_session(built, "agent:main:telegram:dm:1001", source="telegram", chat_type="dm", chat_id="1001", user_id="1001")
    evil = {"source": "telegram", "chat_type": "dm", "chat_id": "666", "user_id": "666"}
    add_session(built, "agent:main:telegram:dm:666", **evil, origin={"user_id_alt": "1001"})
    built.close()
    report = place.run_import(tmp_path / "there")
    people = read_people(place)
    assert not people.is_same_person("telegram:666", "telegram:1001")
    assert any("not linked" in line for line in report.left_behind)


def test_sharing_in_groups_is_converted_so_that_the_addresses_stay(tmp_path: Path, place: ImportTarget) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    group = {"source": "telegram", "chat_type": "group", "chat_id": "-5", "user_id": "7"}
    add_session(built, "agent:main:telegram:group:-5", **group)
    built.close()
    (tmp_path / "there" / "config.yaml").write_text(
        "group_sessions_per_user: false\ngateway: {thread_sessions_per_user: true}\n"
    )
    place.run_import(tmp_path / "there")
    text = place.home.config.read_text()
    assert "group: shared" in text
    assert "thread: per-person" in text
    assert place.read_context("agent:main:telegram:group:-5")


# -- the owner of memory files -----------------------------------------------------------------------------------------


def write_files(path: Path) -> None:
    (path / "memories").mkdir(exist_ok=True)
    (path / "memories" / "USER.md").write_text("Ada takes warfarin.")
    (path / "memories" / "MEMORY.md").write_text("The server is tin.")


def list_notes(place: ImportTarget) -> list[Noted]:
    return [body for *_, body, _ in place.read_all_entries() if isinstance(body, Noted)]


@pytest.mark.parametrize("owner", ["1001", "nobody", "Ada"])
def test_an_owner_who_is_nobody_is_refused_with_the_candidates(tmp_path: Path, place: ImportTarget, owner: str) -> None:
    healthy(tmp_path / "there").close()
    write_files(tmp_path / "there")
    with pytest.raises(InvalidRequest) as caught:
        place.run_import(tmp_path / "there", owner=owner)
    assert f"local:{ME}, telegram:1001, telegram:3003" in caught.value.remedy
    assert place.read_all_entries() == []


@pytest.mark.parametrize(
    "env, people, owner",
    [
        ("", "", "telegram:1001"),
        ("TELEGRAM_ALLOWED_USERS=1001\n", "", "telegram:1001"),
        ("GATEWAY_ALLOWED_USERS=1001\nDISCORD_BOT_TOKEN=x\n", "", "telegram:1001"),
        ("TELEGRAM_ALLOWED_USERS=1001,2002\n", "", ""),
        ("DISCORD_ALLOWED_USERS=77\n", "", ""),
        ("DISCORD_ALLOWED_USERS=77\n", "people: [{name: ada, identities: ['telegram:1001', 'discord:77']}]\n",
         "discord:77"),
    ],
)  # fmt: skip
def test_the_only_person_of_chats_and_allow_lists_is_the_owner(
    tmp_path: Path, place: ImportTarget, env: str, people: str, owner: str
) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    built.add_exchanges(built.add_chat("dm-1", "agent:main:telegram:dm:1001"), "a")
    built.close()
    write_files(tmp_path / "there")
    (tmp_path / "there" / ".env").write_text(env)
    place.home.config.write_text(people)
    report = place.run_import(tmp_path / "there")
    assert report.owner == owner
    assert report.is_complete is bool(owner)
    assert len(list_notes(place)) == (2 if owner else 0)
    if not owner:
        assert place.run_import(tmp_path / "there", owner="telegram:1001").is_complete
        assert {note.stamp.audience for note in list_notes(place)} == {("person:telegram:1001",)}
        assert place.run_import(tmp_path / "there").is_complete, "everything is here, so nothing is asked"


def test_the_user_of_the_terminal_counts_as_a_person(tmp_path: Path, place: ImportTarget) -> None:
    """What Ada said in the terminal must not become Bob's because he is the only one on Telegram."""
    built = BuiltHermesHome(tmp_path / "there")
    built.add_exchanges(built.add_session("cli"), "a")
    built.add_exchanges(built.add_chat("dm-1", "agent:main:telegram:dm:2002"), "a")
    built.close()
    write_files(tmp_path / "there")
    report = place.run_import(tmp_path / "there")
    assert (report.owner, report.candidates) == ("", [f"local:{ME}", "telegram:2002"])


def list_owner_facts(place: ImportTarget, *identities: str) -> list[list[str]]:
    async def read(store: Any) -> list[list[str]]:
        cache = FactCache(store)
        return [[it.text for it in await cache.list_valid("main", (f"person:{one}",))] for one in identities]

    found: list[list[str]] = place.query_store(read)
    return found


FILES = ["The server is tin.", "Ada takes warfarin."]


def test_a_wrong_owner_is_corrected_by_another_import(tmp_path: Path, place: ImportTarget) -> None:
    healthy(tmp_path / "there").close()
    write_files(tmp_path / "there")
    ada, bob = "telegram:1001", "telegram:3003"
    place.run_import(tmp_path / "there", owner=bob)
    assert list_owner_facts(place, ada, bob) == [[], FILES]
    assert place.run_import(tmp_path / "there", owner=ada, dry=True).facts_moved == 2
    assert list_owner_facts(place, ada, bob) == [[], FILES], "a dry run moves nothing"
    for owner, expected in ((ada, [FILES, []]), (bob, [[], FILES]), (ada, [FILES, []])):
        report = place.run_import(tmp_path / "there", owner=owner)
        assert (report.is_complete, report.facts_moved, report.facts_known) == (True, 2, 0)
        assert list_owner_facts(place, ada, bob) == expected
    before = place.read_all_entries()
    for owner in (ada, ""):
        assert place.run_import(tmp_path / "there", owner=owner).facts_moved == 0
    assert place.read_all_entries() == before


def test_facts_do_not_move_between_identities_of_one_person(tmp_path: Path, place: ImportTarget) -> None:
    healthy(tmp_path / "there").close()
    write_files(tmp_path / "there")
    place.home.config.write_text("people: [{name: ada, identities: ['telegram:1001', 'telegram:3003']}]\n")
    place.run_import(tmp_path / "there", owner="telegram:1001")
    assert place.run_import(tmp_path / "there", owner="telegram:3003").facts_moved == 0
    assert list_owner_facts(place, "telegram:3003") == [FILES]


@pytest.mark.parametrize("commits", range(5))
def test_a_move_that_was_interrupted_is_finished_by_the_next_import(
    tmp_path: Path, place: ImportTarget, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy(tmp_path / "there").close()
    write_files(tmp_path / "there")
    place.run_import(tmp_path / "there", owner="telegram:3003")
    left, real = [commits], SqliteStore.commit

    async def commit(store: SqliteStore, change: Change) -> Any:
        if change.step is Step.NOTE:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        return await real(store, change)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(SqliteStore, "commit", commit)
        place.run_import(tmp_path / "there", owner="telegram:1001")
    place.run_import(tmp_path / "there", owner="telegram:1001")
    ada, bob = list_owner_facts(place, "telegram:1001", "telegram:3003")
    assert (sorted(ada), bob) == (sorted(FILES), [])


# -- peers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, peers",
    [
        ({}, {"telegram:1001": "1001", "matrix:@ada:x.org": "-ada-x-org", f"local:{ME}": "user-default-plain"}),
        ({"peerName": "boss"}, {"telegram:1001": "1001", f"local:{ME}": "boss"}),
        ({"peerName": "boss", "pinUserPeer": True}, {"telegram:1001": "boss", f"local:{ME}": "boss"}),
        ({"userPeerAliases": {"1001": "ada"}}, {"telegram:1001": "ada"}),
        ({"userPeerAliases": {"uuid-1": "sig"}}, {"signal:+491": "sig"}),
        ({"runtimePeerPrefix": "tg_"}, {"telegram:1001": "tg_1001"}),
        ({"runtimePeerPrefix": "tg_", "peerName": "tg_1001"}, {"telegram:1001": "tg_1001-1563ab98"}),
        ({"hosts": {"hermes": {"userPeerAliases": {"1001": "near"}}}, "userPeerAliases": {"1001": "far"}},
         {"telegram:1001": "near"}),
    ],
)  # fmt: skip
def test_a_person_keeps_the_peer_that_they_had(
    tmp_path: Path, place: ImportTarget, given: dict[str, Any], peers: dict[str, str]
) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    built.add_exchanges(built.add_session("cli", title="plain"), "a")
    add_session(built, "agent:main:telegram:dm:1001", source="telegram", chat_type="dm", chat_id="1001", user_id="1001")
    matrix = {"source": "matrix", "chat_type": "dm", "chat_id": "!r", "user_id": "@ada:x.org"}
    add_session(built, "agent:main:matrix:dm:!r", **matrix)
    signal = {"source": "signal", "chat_type": "dm", "chat_id": "+491", "user_id": "+491"}
    add_session(built, "agent:main:signal:dm:+491", **signal, origin={"user_id_alt": "uuid-1"})
    built.close()
    (tmp_path / "there" / "config.yaml").write_text("memory: {provider: honcho}\n")
    (tmp_path / "there" / "honcho.json").write_text(json.dumps({"baseUrl": "http://127.0.0.1:9", **given}))
    dry = place.run_import(tmp_path / "there", dry=True)
    place.run_import(tmp_path / "there")
    found = {it.identity: it for it in read_peers(place)}
    assert {identity: found[identity].peer for identity in peers} == peers
    assert {(it.memory, it.agent, it.from_pos, it.source, it.shared) for it in found.values()} == {
        ("honcho", "main", 0, "hermes", False)
    }
    assert [f"honcho: {it.identity} → {it.peer}" for it in found.values()] == dry.peers
    config = place.home.config.read_text()
    for identity, peer in peers.items():
        pinned = given.get("pinUserPeer", False)
        assert (f'"{identity}": ' in config) is not pinned, config
        assert pinned or peer in config
    before = read_peers(place)
    assert place.run_import(tmp_path / "there").settings.written == []
    assert read_peers(place) == before


def test_an_alias_for_one_id_does_not_join_two_people(tmp_path: Path, place: ImportTarget) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    for platform, user in (("telegram", "555"), ("discord", "555"), ("telegram", "7"), ("discord", "8")):
        built.add_exchanges(built.add_chat(f"{platform}-{user}", f"agent:main:{platform}:dm:{user}"), "a")
    built.close()
    aliases = {"555": "ada", "7": "bob", "8": "bob"}
    (tmp_path / "there" / "config.yaml").write_text("memory: {provider: honcho}\n")
    (tmp_path / "there" / "honcho.json").write_text(json.dumps({"userPeerAliases": aliases}))
    place.run_import(tmp_path / "there")
    assert {it.identity: (it.peer, it.shared) for it in read_peers(place)} == {
        "telegram:555": ("ada", True),
        "discord:555": ("ada", True),
        "telegram:7": ("bob", False),  # the settings name both
        "discord:8": ("bob", False),
    }


@pytest.mark.parametrize(
    "provider, file, given, peer",
    [
        ("mem0", "mem0.json", {"host": "http://127.0.0.1:9"}, "1001"),
        ("mem0", "mem0.json", {"host": "http://127.0.0.1:9", "user_id": "all"}, None),
        ("hindsight", "hindsight/config.json", {"bank_id_template": "h-{profile}-{user}"}, "h-default-1001"),
        ("hindsight", "hindsight/config.json", {"bank_id_template": "{user!r:>9999999999}{user}"}, None),
        ("hindsight", "hindsight/config.json", {"bank_id": "one"}, None),
        ("supermemory", "supermemory.json", {}, None),
    ],
)  # fmt: skip
def test_other_services_that_separated_people(
    tmp_path: Path, place: ImportTarget, provider: str, file: str, given: dict[str, Any], peer: str | None
) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    built.add_exchanges(built.add_chat("dm-1", "agent:main:telegram:dm:1001"), "a")
    built.close()
    (tmp_path / "there" / "config.yaml").write_text(f"memory: {{provider: {provider}}}\n")
    (tmp_path / "there" / file).parent.mkdir(exist_ok=True)
    (tmp_path / "there" / file).write_text(json.dumps(given))
    place.run_import(tmp_path / "there")
    assert {it.identity: it.peer for it in read_peers(place)} == ({"telegram:1001": peer} if peer else {})
