"""Passes hints about commits, and the text of growing replies, between the hosts of one database with NOTIFY.

What a host has to say is gathered for some milliseconds and sent with one statement, after the commits and on a
connection of its own, because NOTIFY inside a transaction would make commits wait for each other. A hint may be lost:
everything that waits for a commit polls as well.

Every role that may connect to the database may listen and notify on every channel whose name it knows. So the name is
a secret of those who can read the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import msgspec
import psycopg
from msgspec import Struct

from everhold.core.entries import EntryKind
from everhold.ports.clock import RandomSource
from everhold.ports.hosts import CommitHint, ReplyPiece, ReplyTextExchange
from everhold.stores.notifier import LocalNotifier
from everhold.stores.postgres.connections import PostgresConnector
from everhold.stores.postgres.statements import PgConnection

GATHER_SECONDS: Final = 0.02
HELLO_SECONDS: Final = 5.0
PEER_SECONDS: Final = 4 * HELLO_SECONDS
"""How long a host counts as one that listens, after its last message. Alone, a host sends greetings only."""
PROBE_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 5.0
MAX_PAYLOAD_BYTES: Final = 7_900
"""The server refuses payloads of 8,000 bytes."""
MAX_PAYLOADS: Final = 64
"""More are dropped: the server keeps notifications in memory until the slowest listener has read them."""
MAX_GATHERED: Final = 4_096
MAX_TEXT_CHARS: Final = 1_000
"""Longer texts are split. A character is encoded in at most six bytes."""
EVERY_SESSION: Final = ""
_NOTIFY: Final = b"select pg_notify(%s, payload) from unnest(%s::text[]) with ordinality as it(payload, n) order by n"
T = TypeVar("T")


class HintMessage(Struct, array_like=True):
    """A payload. All lists may be empty."""

    sender: str
    commits: list[tuple[str, str, list[str], bool]] = []
    """Session, step, kinds of entries, and whether work is due."""
    texts: list[ReplyPiece] = []
    watched: list[str] | None = None
    """A greeting: the sessions whose growing replies the sender shows."""


_decoder: Final = msgspec.json.Decoder(HintMessage)
_encode: Final = msgspec.json.Encoder().encode
_KINDS: Final = frozenset(EntryKind)


class PostgresNotifier(LocalNotifier):
    """Hints of this host for others, and of others for this host. It begins with the first subscriber."""

    def __init__(self, connector: PostgresConnector, *, incarnation: str, chance: RandomSource) -> None:
        """`incarnation` is that of the store, which only its own role can read."""
        super().__init__()
        self.channel = name_channel(incarnation)
        self.sender = chance.bytes(8).hex()
        self.reaches_other_hosts = False
        self._connector = connector
        self._task: asyncio.Task[None] | None = None
        self._exchange: ReplyTextExchange | None = None
        self._peers: dict[str, float] = {}
        """Sender -> until when it counts as a host that listens."""
        self._watches: dict[str, dict[str, float]] = {}
        """Session -> sender -> until when it shows the session's growing reply."""
        self._commits: dict[tuple[str, str], tuple[set[str], bool]] = {}
        self._texts: list[ReplyPiece] = []
        self._is_greeting = False
        self._wakeup = asyncio.Event()

    @property
    def has_peers(self) -> bool:
        """Whether another host listens."""
        return bool(self._peers)

    # -- what this host has to say -----------------------------------------------------------------------------------

    def publish(self, hint: CommitHint) -> None:
        super().publish(hint)
        if not self._peers:
            return
        kinds, is_due = self._commits.get((hint.session, hint.step), (set(), False))
        if len(self._commits) < MAX_GATHERED:
            self._commits[hint.session, hint.step] = (kinds | set(hint.kinds), is_due or hint.is_work_due)
        self._wakeup.set()

    def publish_text(self, piece: ReplyPiece) -> None:
        if piece.session not in self._watches and EVERY_SESSION not in self._watches:
            return
        if len(self._texts) < MAX_GATHERED:
            self._texts.append(piece)
        self._wakeup.set()

    def announce_watch(self) -> None:
        self._is_greeting = True
        self._wakeup.set()

    def connect_texts(self, exchange: ReplyTextExchange) -> None:
        self._exchange = exchange

    def subscribe(self, receive: Callable[[CommitHint], None]) -> Callable[[], None]:
        if self._task is None and not self._connector.is_pooled:  # a pooler would give LISTEN to another client
            self._task = asyncio.create_task(self._run(), name="postgres hints")
        return super().subscribe(receive)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- the connections ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Listen and send for ever. After a failure, try again later."""
        while True:
            try:
                await self._exchange_hints()
            except* (psycopg.Error, TimeoutError):
                pass  # everybody polls meanwhile
            self.reaches_other_hosts = False
            self._peers.clear()
            self._watches.clear()
            await asyncio.sleep(RETRY_SECONDS)

    async def _exchange_hints(self) -> None:
        async with contextlib.AsyncExitStack() as opened:
            listening, sending = [await opened.enter_async_context(await self._connector.connect()) for _ in range(2)]
            await listening.execute(f"listen {self.channel}".encode())
            probe = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen(listening, probe))
                tasks.create_task(self._greet(sending, probe))
                tasks.create_task(self._send_gathered(sending))

    async def _listen(self, connection: PgConnection, probe: asyncio.Event) -> None:
        async for notification in connection.notifies():
            try:
                message = _decoder.decode(notification.payload)
            except (msgspec.DecodeError, msgspec.ValidationError):
                continue  # not ours
            if message.sender == self.sender:
                probe.set()
            else:
                self._receive(message)
        raise psycopg.OperationalError("the connection for hints has ended")

    async def _greet(self, connection: PgConnection, probe: asyncio.Event) -> None:
        """Greet the other hosts now and again. A greeting that does not come back says that hints do not arrive."""
        while True:
            probe.clear()
            self._is_greeting = False
            await self._notify(connection, [_encode(self._build_greeting())])
            async with asyncio.timeout(PROBE_SECONDS):
                await probe.wait()
            self.reaches_other_hosts = True
            await asyncio.sleep(HELLO_SECONDS)
            self._forget_silent()

    async def _send_gathered(self, connection: PgConnection) -> None:
        while True:
            await self._wakeup.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._wakeup.clear()
            payloads = list(self._take_payloads())[:MAX_PAYLOADS]
            if payloads:
                await self._notify(connection, payloads)

    async def _notify(self, connection: PgConnection, payloads: list[bytes]) -> None:
        await connection.execute(_NOTIFY, (self.channel, [payload.decode() for payload in payloads]))

    def _take_payloads(self) -> Iterator[bytes]:
        """Encode what was gathered. Each payload is as long as the server accepts."""
        commits, self._commits = self._commits, {}
        texts, self._texts = self._texts, []
        if self._is_greeting:
            self._is_greeting = False
            yield _encode(self._build_greeting())
        items = [(session, step, sorted(kinds), is_due) for (session, step), (kinds, is_due) in commits.items()]
        for page in _split_pages(items):
            yield _encode(HintMessage(self.sender, commits=page))
        for pieces in _split_pages(_join_pieces(texts)):
            yield _encode(HintMessage(self.sender, texts=pieces))

    def _build_greeting(self) -> HintMessage:
        watched = sorted(self._exchange.list_watched()) if self._exchange is not None else []
        if EVERY_SESSION in watched or len(_encode(watched)) > MAX_PAYLOAD_BYTES // 2:
            watched = [EVERY_SESSION]
        return HintMessage(self.sender, watched=watched)

    # -- what other hosts say ----------------------------------------------------------------------------------------

    def _receive(self, message: HintMessage) -> None:
        now = asyncio.get_running_loop().time()
        is_new = message.sender not in self._peers
        self._peers[message.sender] = now + PEER_SECONDS
        if is_new:
            self.announce_watch()  # it does not know us yet
        for session, step, kinds, is_due in message.commits:
            known = tuple(EntryKind(kind) for kind in kinds if kind in _KINDS)
            hint = CommitHint(session=session, step=step, kinds=known, is_work_due=is_due, is_remote=True)
            super().publish(hint)
        if self._exchange is not None:
            for piece in message.texts:
                self._exchange.receive_text(piece)
        if message.watched is not None:
            self._note_watched(message.sender, message.watched, until=now + PEER_SECONDS)

    def _note_watched(self, sender: str, sessions: Iterable[str], *, until: float) -> None:
        """Note which growing replies another host shows, and send it what is there already."""
        for session in sessions:
            is_new = sender not in self._watches.setdefault(session, {})
            self._watches[session][sender] = until
            if is_new and self._exchange is not None:
                for piece in self._exchange.list_growing(session):
                    self.publish_text(piece)

    def _forget_silent(self) -> None:
        now = asyncio.get_running_loop().time()
        self._peers = {sender: until for sender, until in self._peers.items() if until > now}
        kept = {
            session: {sender: until for sender, until in senders.items() if until > now}
            for session, senders in self._watches.items()
        }
        self._watches = {session: senders for session, senders in kept.items() if senders}


def name_channel(incarnation: str) -> str:
    """Return the channel of a store. It does not tell the incarnation."""
    return f"everhold_{hashlib.sha256(f'hints of {incarnation}'.encode()).hexdigest()[:32]}"


def _join_pieces(pieces: Iterable[ReplyPiece]) -> Iterator[ReplyPiece]:
    """Join consecutive pieces of one reply, and split what is too long for a payload."""
    joined: list[ReplyPiece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and last[:2] == piece[:2] and not piece.reset and last.at + len(last.text) == piece.at:
            joined[-1] = last._replace(text=last.text + piece.text)
        else:
            joined.append(piece)
    for piece in joined:
        for start in range(0, max(1, len(piece.text)), MAX_TEXT_CHARS):
            part = piece.text[start : start + MAX_TEXT_CHARS].encode("utf-8", "replace").decode()
            yield piece._replace(text=part, reset=piece.reset and start == 0, at=piece.at + start)


def _split_pages(items: Iterable[T]) -> Iterator[list[T]]:
    """Split items into lists that fit into a payload."""
    page: list[T] = []
    size = 0
    for item in items:
        length = len(_encode(item)) + 1
        if page and size + length > MAX_PAYLOAD_BYTES - 100:
            yield page
            page, size = [], 0
        page.append(item)
        size += length
    if page:
        yield page
