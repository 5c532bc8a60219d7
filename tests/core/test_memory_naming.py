"""Session names for memory providers: readable if possible, and never one name for two sessions."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from everhold.core.address import Address
from everhold.core.memory_naming import (
    HermesNaming,
    NamingRule,
    SessionOrigin,
    choose_hermes_name,
    choose_memory_name,
    limit_hermes_name,
)

IDS = st.text(min_size=1, max_size=12) | st.sampled_from(["1", "-1", "a-b", "a", "b", "1:2", "1/2", "%31", "é", "--"])
RULES = st.builds(
    NamingRule,
    strategy=st.sampled_from(["per-session", "per-directory", "per-repo", "global"]),
    workspace=st.sampled_from(["home", "my work", ""]),
    peer=st.sampled_from(["", "ada", "a-b", "ä"]),
    max_chars=st.sampled_from([40, 64, 100]),
)


def test_a_plain_direct_chat_is_named_by_its_address() -> None:
    address = str(Address(agent="main", platform="telegram", kind="dm", chat="123456"))
    assert (
        choose_memory_name(SessionOrigin(session="s1", address=address), NamingRule()).text
        == "agent-main-telegram-dm-123456"
    )


def test_the_name_comes_from_title_address_strategy_or_workspace() -> None:
    origin = SessionOrigin(
        session="abc", title="Plans", address="agent:main:http:dm:me", directory="/src/app", repo="app"
    )
    rule = NamingRule(strategy="per-repo", workspace="home")
    sources = []
    for field in ("title", "address", "repo", "directory"):
        sources.append(choose_memory_name(origin, rule).source)
        origin = structs.replace(origin, **{field: ""})
    sources.append(choose_memory_name(origin, rule).source)
    assert sources == ["title", "address", "per-repo", "per-directory", "workspace"]


def test_a_name_that_is_empty_after_sanitising_is_skipped() -> None:
    origin = SessionOrigin(session="abc", title="!!!", address="agent:main:http:dm:me")
    assert choose_memory_name(origin, NamingRule()).source == "address"


def test_repositories_of_one_name_in_two_directories_get_different_names() -> None:
    rule = NamingRule(strategy="per-repo")
    names = {
        choose_memory_name(SessionOrigin(session="s", repo=repo), rule).text for repo in ("/home/a/api", "/srv/b/api")
    }
    assert len(names) == 2
    assert all(text.startswith("api-") for text in names)


def test_equal_titles_of_different_owners_give_different_names() -> None:
    names = {
        choose_memory_name(SessionOrigin(session="s", owner=owner, title="Work"), NamingRule()).text
        for owner in ("ada", "bob")
    }
    assert len(names) == 2
    assert all(text.startswith("Work-") for text in names)


def test_the_peer_prefix_applies_to_every_branch() -> None:
    rule = NamingRule(peer="ada", strategy="per-session")
    for origin in (
        SessionOrigin(session="s1", title="Plans"),
        SessionOrigin(session="s1", address="agent:main:telegram:dm:1"),
        SessionOrigin(session="s1"),
    ):
        assert choose_memory_name(origin, rule).text.startswith("ada-")


def test_a_user_and_a_thread_with_one_number_get_different_names() -> None:
    base = Address(agent="main", platform="telegram", kind="group", chat="100")
    texts = {
        choose_memory_name(
            SessionOrigin(session="s", address=str(structs.replace(base, **{field: "42"}))), NamingRule()
        ).text
        for field in ("thread", "person")
    }
    assert len(texts) == 2


@given(st.lists(st.tuples(IDS, IDS, IDS, IDS), min_size=2, max_size=2, unique=True), RULES)
def test_two_addresses_never_share_a_name(parts: list[tuple[str, str, str, str]], rule: NamingRule) -> None:
    texts = []
    for agent, platform, chat, thread in parts:
        address = Address(agent=agent, platform=platform, kind="group", chat=chat, thread=thread)
        texts.append(choose_memory_name(SessionOrigin(session="s", address=str(address)), rule).text)
    assert texts[0] != texts[1]


@given(
    st.builds(
        SessionOrigin, session=IDS, owner=IDS, title=st.text(max_size=200), directory=st.text(max_size=60), repo=IDS
    ),
    RULES,
)
def test_every_name_is_valid_for_the_providers(origin: SessionOrigin, rule: NamingRule) -> None:
    text = choose_memory_name(origin, rule).text
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert len(text) <= rule.max_chars
    assert choose_memory_name(origin, rule).text == text


ORIGINS = st.builds(
    SessionOrigin,
    session=st.just("s"),
    owner=IDS,
    title=st.text(max_size=80) | IDS,
    address=st.just("") | st.builds(lambda chat: str(Address(agent="main", platform="t", kind="dm", chat=chat)), IDS),
    directory=st.just("") | st.builds("/{}/{}".format, IDS, IDS),
)


@given(st.tuples(ORIGINS, ORIGINS), RULES)
def test_two_sessions_share_a_name_only_if_they_have_the_same_source(
    pair: tuple[SessionOrigin, SessionOrigin], rule: NamingRule
) -> None:
    one, other = (choose_memory_name(origin, rule) for origin in pair)
    if one.text == other.text:
        assert one.source == other.source
        match one.source:
            case "title":
                assert (pair[0].owner, pair[0].title) == (pair[1].owner, pair[1].title)
            case "address":
                assert pair[0].address == pair[1].address
            case "per-directory":
                assert pair[0].directory == pair[1].directory


@given(ORIGINS, RULES)
def test_hermes_names_are_valid_for_its_service(origin: SessionOrigin, rule: NamingRule) -> None:
    text = choose_hermes_name(origin, rule).text
    assert re.fullmatch(r"[A-Za-z0-9_-]*", text)
    assert choose_hermes_name(origin, rule).text == text


def test_directories_of_one_name_get_different_names() -> None:
    names = {
        choose_memory_name(SessionOrigin(session="s", directory=path), NamingRule()).text
        for path in ("/a/app", "/b/app")
    }
    assert len(names) == 2
    assert all(text.startswith("app-") for text in names)


class TestHermes:
    @pytest.mark.parametrize(
        "origin, rule, expected",
        [
            (
                SessionOrigin(session="s", address="agent:main:telegram:dm:123"),
                NamingRule(peer="ada"),
                "agent-main-telegram-dm-123",
            ),
            (
                SessionOrigin(session="20260101_120000_ab12cd"),
                NamingRule(strategy="per-session"),
                "20260101_120000_ab12cd",
            ),
            (SessionOrigin(session="s", title="My Plans!"), NamingRule(peer="ada"), "ada-My-Plans"),
            (SessionOrigin(session="s", directory="/src/my app"), NamingRule(), "my-app"),
            (
                SessionOrigin(session="s", repo="everhold", directory="/x/y"),
                NamingRule(strategy="per-repo"),
                "everhold",
            ),
            (
                SessionOrigin(session="s", repo="/x/everhold", directory="/x/everhold/y"),
                NamingRule(strategy="per-repo"),
                "everhold",
            ),
            (SessionOrigin(session="s"), NamingRule(strategy="global", workspace="hermes"), "hermes"),
        ],
    )
    def test_hermes_names_are_reproduced(self, origin: SessionOrigin, rule: NamingRule, expected: str) -> None:
        assert choose_hermes_name(origin, rule).text == expected

    def test_the_configured_map_has_precedence_over_the_title(self) -> None:
        origin = SessionOrigin(session="s", title="T", directory="/src/app")
        assert choose_hermes_name(origin, NamingRule(), HermesNaming(sessions={"/src/app": "mapped"})).text == "mapped"

    @pytest.mark.parametrize("length", [99, 100, 101, 102])
    def test_a_key_of_at_most_a_hundred_characters_is_kept_whole(self, length: int) -> None:
        key = "agent:main:matrix:group:".ljust(length, "x")
        plain = key.replace(":", "-")
        digest = hashlib.sha256(key.encode()).hexdigest()[:8]
        assert limit_hermes_name(key) == (plain if length <= 100 else f"{plain[:91]}-{digest}")
        assert len(limit_hermes_name(key)) == min(length, 100)
        assert choose_hermes_name(SessionOrigin(session="s", address=key), NamingRule()).text == limit_hermes_name(key)

    def test_a_long_key_is_cut_to_a_hundred_with_its_hash(self) -> None:
        address = str(Address(agent="main", platform="matrix", kind="group", chat="!" + "x" * 120 + ":example.org"))
        text = choose_hermes_name(SessionOrigin(session="s", address=address), NamingRule()).text
        assert len(text) == 100
        assert re.search(r"-[0-9a-f]{8}$", text)
