"""Hosts tell each other of their commits and of replies that grow, and nothing depends on it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence

import psycopg
import pytest

from everhold.api.log_tail import LogTail
from everhold.core.entries import EntryKind
from everhold.ports.hosts import CommitHint, ReplyPiece
from everhold.ports.store import Step
from everhold.stores.postgres import PostgresStore, hints
from everhold.stores.postgres.hints import MAX_PAYLOAD_BYTES, PostgresNotifier
from everhold.stores.postgres.statements import PgConnection
from tests.stores.postgres.scenario import connect, make_message, open_hosts, open_session
from tests.waiting import wait_until


async def introduce(*stores: PostgresStore) -> list[list[CommitHint]]:
    """Subscribe to the hints of hosts, and wait until they know each other."""
    heard: list[list[CommitHint]] = []
    for store in stores:
        heard.append([])
        store.notifier.subscribe(heard[-1].append)
    await wait_until(lambda: all(len(store.notifier._peers) == len(stores) - 1 for store in stores))
    await wait_until(lambda: all(store.notifier.reaches_other_hosts for store in stores))
    return heard


async def test_another_host_hears_of_a_commit(postgres_url: str) -> None:
    async with open_hosts(postgres_url, 2) as (one, other):
        _, heard = await introduce(one, other)
        await open_session(one, "s")
        await one.commit(make_message("s", "hello", wake="turn"))
        await wait_until(lambda: any(hint.is_work_due for hint in heard))
        found = next(hint for hint in heard if hint.is_work_due)
        assert found == CommitHint(
            session="s", step=Step.ACCEPT, kinds=(EntryKind.HEARD,), is_work_due=True, is_remote=True
        )


async def test_a_host_alone_sends_greetings_only_and_many_commits_are_one_notification(postgres_url: str) -> None:
    async with open_hosts(postgres_url, 2) as (one, other):
        own: list[CommitHint] = []
        one.notifier.subscribe(own.append)
        await wait_until(lambda: one.notifier.reaches_other_hosts)
        sent: list[list[bytes]] = []
        notify = one.notifier._notify

        async def count(connection: PgConnection, payloads: list[bytes]) -> None:
            sent.append(payloads)
            await notify(connection, payloads)

        one.notifier._notify = count  # type: ignore[method-assign]
        await open_session(one, "s")
        assert len(own) == 1
        await asyncio.sleep(3 * hints.GATHER_SECONDS)
        assert sent == [], "nobody listens"
        (heard,) = await introduce_beside(one, other)
        await wait_until(lambda: not one.notifier._wakeup.is_set())
        sent.clear()
        for number in range(50):
            one.notifier.publish(CommitHint(session=f"s{number % 10}", step="end", is_work_due=number == 7))
        await wait_until(lambda: len(heard) == 10)
        assert [len(payloads) for payloads in sent] == [1]
        assert [hint.session for hint in heard if hint.is_work_due] == ["s7"]


async def introduce_beside(known: PostgresStore, new: PostgresStore) -> list[list[CommitHint]]:
    heard: list[CommitHint] = []
    new.notifier.subscribe(heard.append)
    await wait_until(lambda: known.notifier._peers and new.notifier._peers)
    return [heard]


def collect(pieces: Sequence[ReplyPiece]) -> str:
    return "".join(piece.text for piece in pieces)


async def test_a_growing_reply_is_shown_on_another_host(postgres_url: str) -> None:
    async with open_hosts(postgres_url, 2) as (one, other):
        here, there = LogTail(one.notifier), LogTail(other.notifier)
        await introduce(one, other)
        other.notifier.subscribe(there.on_commit)
        here.on_reply_text("s", 3, "Once ")
        here.on_reply_text("other", 3, "secret")
        shown: list[ReplyPiece] = []
        with there.watch("s") as watch:

            def look() -> str:
                shown.extend(watch.take_pieces())
                return collect(shown)

            await wait_until(lambda: look() == "Once ")  # a late watcher gets what is there
            here.on_reply_text("s", 3, "upon ")
            here.on_reply_text("s", 3, "a time")
            await wait_until(lambda: look() == "Once upon a time")
            assert collect(there.get_growing_reply("s")) == "Once upon a time"
            here.on_reply_text("s", 3, None)  # another model starts it again
            here.on_reply_text("s", 3, "Long ago")
            await wait_until(lambda: look().endswith("Long ago"))
            assert sum(piece.reset for piece in shown) == 1
            one.notifier.publish(CommitHint(session="s", step=Step.END))
            await wait_until(lambda: there.get_growing_reply("s") == [])
        assert {piece.session for piece in shown} == {"s"}


async def test_text_that_nobody_shows_is_not_sent(postgres_url: str) -> None:
    async with open_hosts(postgres_url, 2) as (one, other):
        here, there = LogTail(one.notifier), LogTail(other.notifier)
        await introduce(one, other)
        here.on_reply_text("s", 3, "Once ")
        assert one.notifier._texts == []
        with there.watch("s", until=(EntryKind.ENDED,)):
            await asyncio.sleep(3 * hints.GATHER_SECONDS)
            here.on_reply_text("s", 3, "upon ")
            assert one.notifier._texts == [], "this watch waits for the end only"


def test_long_texts_are_split_into_payloads_that_the_server_accepts() -> None:
    text = "\x01" * 3_000 + "漢字" * 3_000 + "\ud800"
    pieces = list(hints._join_pieces([ReplyPiece("s", 1, text[:10], reset=True), ReplyPiece("s", 1, text[10:], at=10)]))
    assert collect(pieces) == text.replace("\ud800", "?")
    assert [piece.at for piece in pieces] == list(range(0, len(text), hints.MAX_TEXT_CHARS))
    assert [piece.reset for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    for page in hints._split_pages(pieces):
        payload = hints._encode(hints.HintMessage("x" * 16, texts=page))
        assert len(payload) <= MAX_PAYLOAD_BYTES


def test_text_that_is_repeated_or_comes_after_a_gap_is_left_out() -> None:
    tail = LogTail()
    with tail.watch("s") as watch:
        tail.receive_text(ReplyPiece("s", 1, "late", at=10))
        assert watch.take_pieces() == []
        tail.receive_text(ReplyPiece("s", 1, "Once upon"))
        tail.receive_text(ReplyPiece("s", 1, "upon a time", at=5))
        tail.receive_text(ReplyPiece("s", 1, "Once"))
        tail.receive_text(ReplyPiece("s", 1, "gap", at=30))
        assert watch.take_pieces() == [ReplyPiece("s", 1, "Once upon"), ReplyPiece("s", 1, " a time", at=9)]


async def test_hints_come_again_after_the_connections_were_lost(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "RETRY_SECONDS", 0.05)
    async with open_hosts(postgres_url, 2) as (one, other):
        _, heard = await introduce(one, other)
        with connect(postgres_url) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        await wait_until(lambda: not other.notifier.reaches_other_hosts)
        await wait_until(lambda: one.notifier._peers and other.notifier._peers)
        await open_session(one, "s")
        await wait_until(lambda: heard)


async def test_hints_that_do_not_come_back_count_as_lost(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy may swallow them without an error."""
    monkeypatch.setattr(hints, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(hints, "_NOTIFY", hints._NOTIFY.replace(b"pg_notify(%s", b"pg_notify('other' || %s"))
    async with open_hosts(postgres_url) as (store,):
        store.notifier.subscribe(lambda hint: None)
        await asyncio.sleep(0.6)
        assert not store.notifier.reaches_other_hosts
        assert isinstance(store.notifier, PostgresNotifier)


async def test_what_is_not_a_hint_is_ignored(postgres_url: str) -> None:
    async with open_hosts(postgres_url, 2) as (one, other):
        _, heard = await introduce(one, other)
        with connect(postgres_url) as connection:
            for payload in ("", "{}", '["x",[["s"]]]', '["x",[["s","end",["no such kind"],false]]]'):
                connection.execute("select pg_notify(%s, %s)", (one.notifier.channel, payload))
        await wait_until(lambda: heard)
        assert heard[0] == CommitHint(session="s", step="end", is_remote=True)


async def test_a_role_that_may_only_connect_hears_nothing_and_says_nothing(postgres_url: str) -> None:
    """Every role of the server may listen and notify, and a growing reply is the text of a conversation."""
    with connect(postgres_url) as owner, contextlib.closing(open_stranger(owner, postgres_url)) as stranger:
        async with open_hosts(postgres_url, 2) as (one, other):
            overheard: list[str] = []
            stranger.add_notify_handler(lambda notification: overheard.append(notification.payload))
            stranger.execute("listen everhold")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                stranger.execute("select incarnation from store_info")
            _, heard = await introduce(one, other)
            forged = hints._encode(hints.HintMessage("stranger", watched=[hints.EVERY_SESSION])).decode()
            for channel in ("everhold", *list_visible_channels(stranger)):
                stranger.execute(f"listen {channel}")
                stranger.execute("select pg_notify(%s, %s)", (channel, forged))
            await open_session(one, "s")
            await wait_until(lambda: any(hint.session == "s" for hint in heard))
            stranger.execute("select 1")  # an answer brings what was notified before
            assert set(overheard) <= {forged}
            assert "stranger" not in one.notifier._peers
            assert one.notifier.channel == other.notifier.channel


async def test_a_channel_that_everybody_can_name_is_found(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "name_channel", lambda incarnation: "everhold")
    with pytest.raises(AssertionError):
        await test_a_role_that_may_only_connect_hears_nothing_and_says_nothing(postgres_url)


def open_stranger(owner: psycopg.Connection[tuple[object, ...]], url: str) -> psycopg.Connection[tuple[object, ...]]:
    """Connect as a role that was granted nothing."""
    with contextlib.suppress(psycopg.errors.DuplicateObject):
        owner.execute("create role stranger login")
    return psycopg.connect(url, user="stranger", autocommit=True)


def list_visible_channels(connection: psycopg.Connection[tuple[object, ...]]) -> list[str]:
    """Return the channels that the server tells this role about, also in the statements of others."""
    rows = connection.execute("select coalesce(query, '') from pg_stat_activity").fetchall()
    return sorted({name for (query,) in rows for name in re.findall(r"everhold\w*", str(query))})
