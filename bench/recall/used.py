"""Recall as a person meets it: a person and an agent talked, and the evidence is counted in the request that the model
gets.

Two ways of asking give the same request. `ask_in_process` calls the recall of a turn, so an idea can be tried within a
minute. `ask_over_http` runs `everhold up` on the same home, posts every question in a conversation of its own, and
reads the request that the model server recorded.
"""

from __future__ import annotations

import dataclasses
import getpass
import http.client
import json
import random
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from urllib.parse import urlsplit

from msgspec import Struct, structs

from bench.gateway import CONFIG, CREDENTIAL, Gateway, model
from bench.in_process import InProcessGateway
from bench.recall.data import Conversation, Question, Said
from bench.recall.scenario import open_store
from everhold.core.entries import (
    Began,
    ChatLocation,
    Ended,
    EntryBody,
    EntryDraft,
    Heard,
    ModelUsage,
    Said as SaidBody,
    Stamp,
    Thought,
)
from everhold.core.recall_blobs import pack_record
from everhold.core.tokens import weigh_text
from everhold.engine.memory.recall import recall_for_turn
from everhold.engine.memory_client import MemoryClient
from everhold.infra.home import Home
from everhold.memories.builtin import BuiltinMemory, MemoryIndex
from everhold.memories.builtin.embeddings import EmbeddingsMode
from everhold.ports.memory import MemoryQuery
from everhold.ports.store import Change, SessionOpening, Step, Store
from everhold.stores.sqlite import SqliteStore

PASSAGE_CHARS = 400
"""Of a longer message, one such piece counts as the message, because recall shows passages of long messages."""
RESAMPLES = 2_000
WINDOW_TOKENS = 200_000


class Answered(Struct, frozen=True, kw_only=True):
    """What one question brought into the request."""

    kind: str
    in_request: float
    at_5: float = 0.0
    at_10: float = 0.0
    at_20: float = 0.0
    tokens: int = 0
    """Tokens of the recall block, as the limit counts them."""
    stored_bytes: int = 0
    """Bytes of the two blobs that record the recall."""
    cpu_ms: float = 0.0


class Interval(Struct, frozen=True):
    """A mean and the interval that holds 95 % of the means of resampled questions."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def compute_interval(values: Sequence[float], *, seed: int = 5) -> Interval:
    import numpy as np

    if not values:
        return Interval(0.0, 0.0, 0.0)
    column = np.asarray(values)
    picks = np.random.default_rng(seed).integers(0, len(column), (RESAMPLES, len(column)))
    means = np.sort(column[picks].mean(axis=1))
    return Interval(float(column.mean()), float(means[RESAMPLES // 40]), float(means[-1 - RESAMPLES // 40]))


def select_half(talks: Sequence[Conversation], half: str) -> list[Conversation]:
    """Return the conversations to tune on, or those to validate on. No conversation is in both halves."""
    return list(talks) if half == "all" else list(talks[0 if half == "tuning" else 1 :: 2])


# -- storing -----------------------------------------------------------------------------------------------------------


def choose_agent_speaker(talk: Conversation) -> str:
    """Return whose words the agent says: the assistant's, or those of the second person."""
    speakers = list(dict.fromkeys(message.speaker for message in talk.messages))
    return next((one.speaker for one in talk.messages if one.agent), speakers[-1])


async def store_conversation(store: Store, talk: Conversation, *, person: str) -> dict[tuple[str, int], str]:
    """Commit a conversation as finished turns of a gateway; return the message id of each (session, seq)."""
    places: dict[tuple[str, int], str] = {}
    speaker = choose_agent_speaker(talk)
    parts: dict[str, list[Said]] = defaultdict(list)
    for message in talk.messages:
        parts[message.part].append(message)
    for part, messages in parts.items():
        writer = _SessionWriter(store, f"{talk.name}.{part}", person)
        waiting: list[Said] = []
        for message in messages:
            if message.speaker == speaker:
                await writer.finish_turn(waiting, message, places)
                waiting = []
            else:
                waiting.append(message)
        if waiting:
            await writer.finish_turn(waiting, None, places)
    return places


class _SessionWriter:
    """Writes the turns of one session as the engine commits them."""

    def __init__(self, store: Store, session: str, person: str) -> None:
        self.store = store
        self.session = session
        self.seq = 0
        address = f"agent:main:http:dm:{session}"
        self.stamp = Stamp(person=person, audience=(f"person:{person}",), address=address)
        self.place = ChatLocation(platform="http", account="", chat=session)

    async def finish_turn(self, heard: Sequence[Said], said: Said | None, places: dict[tuple[str, int], str]) -> None:
        for message in heard:
            origin = structs.replace(self.place, message=message.id)
            body = Heard(origin=origin, text=message.text, stamp=self.stamp)
            await self._commit(Step.ACCEPT, message.at, EntryDraft(body=body, author=f"person:{self.stamp.person}"))
            places[self.session, self.seq] = message.id
        takes = tuple(range(self.seq - len(heard) + 1, self.seq + 1))
        text = said.text if said else ""
        op = self.seq + 1
        bodies: list[EntryBody] = [
            Began(type="turn", takes=takes, compression=0, generation=0, consumer="turn"),
            Thought(text=text, model="instant", generation=0, request="0" * 64, usage=ModelUsage(input=9)),
        ]
        if said is not None:
            bodies.append(SaidBody(text=text, to=self.place, parts=(text,), stamp=self.stamp))
            places[self.session, op + 2] = said.id
        bodies.append(Ended(usage=ModelUsage(input=9)))
        at = said.at if said else heard[-1].at
        await self._commit(Step.END, at, *(EntryDraft(body=body, author="agent:main", op=op) for body in bodies))

    async def _commit(self, step: Step, at: float, *drafts: EntryDraft) -> None:
        opens = SessionOpening(agent="main", address=self.stamp.address) if not self.seq else None
        done = await self.store.commit(Change(step=step, session=self.session, at=at, entries=drafts, opens=opens))
        self.seq = done.seqs[-1]


# -- asking ------------------------------------------------------------------------------------------------------------


class _Runtimes(InProcessGateway):
    """The runtime of a turn with the built-in memory."""

    def __init__(self, store: SqliteStore, index: MemoryIndex, *, max_tokens: int | None) -> None:
        super().__init__(store)
        memory = BuiltinMemory(index=index, store=store, agent="main")
        self.client = MemoryClient(memory, instance="builtin", agent="main")
        self.runtime = dataclasses.replace(self._runtime, recall_memories=("builtin",), recall_seconds=600.0)
        if max_tokens is not None:
            self.runtime = dataclasses.replace(self.runtime, recall_tokens=max_tokens)

    def find_memory(self, instance: str, agent: str) -> MemoryClient | None:
        return self.client if instance == "builtin" else None


async def ask_in_process(
    talk: Conversation,
    *,
    use: EmbeddingsMode,
    models: Path | None = None,
    max_tokens: int | None = None,
    asked_before: float = 0.0,
) -> list[Answered]:
    """Store a conversation, and recall for each question as a turn does.

    `asked_before`: this share of the questions was asked before in other sessions, and got an empty answer.
    """
    person = f"http:{getpass.getuser()}"
    with tempfile.TemporaryDirectory() as home:
        store = open_store(Path(home))
        assert isinstance(store, SqliteStore)
        places = await store_conversation(store, talk, person=person)
        await _ask_before(store, talk, asked_before, person=person)
        index = MemoryIndex(Path(home) / "index.db", inline=True, embeddings=use, models=models)
        while await index.catch_up(store):
            pass
        while await index.fill_embeddings(64):
            pass
        runtimes = _Runtimes(store, index, max_tokens=max_tokens)
        stamp = Stamp(person=person, audience=(f"person:{person}",), address="agent:main:http:dm:asking")
        draft = EntryDraft(
            body=Heard(origin=ChatLocation(platform="http"), text="…", stamp=stamp), author=f"person:{person}"
        )
        opening = SessionOpening(agent="main", address=stamp.address)
        last = max(message.at for message in talk.messages)
        await store.commit(Change(step=Step.ACCEPT, session="asking", at=last + 3_600, entries=(draft,), opens=opening))
        session = await store.get_session("asking")
        texts = {message.id: _flatten(message.text) for message in talk.messages}
        answered = []
        for question in talk.questions:
            started = time.process_time()
            recalled = await recall_for_turn(
                runtimes.gates, runtimes, runtimes.runtime, session, op=2, takes=(1,), text=question.text,
                stamp=stamp, list_visible=lambda: frozenset({1}),
            )  # fmt: skip
            cpu_ms = (time.process_time() - started) * 1e3
            record = pack_record(recalled.record) if recalled.record else b""
            query = MemoryQuery(
                text=question.text, agent="main", session="asking", name="bench", audience=stamp.audience,
                person=person, limit=20, seen=frozenset({1}),
            )  # fmt: skip
            ids = [places.get((hit.session, hit.seq), "") for hit in await runtimes.client.find(query)]
            answered.append(
                Answered(
                    kind=question.kind,
                    in_request=_share_in_text(question, texts, _flatten(recalled.text)),
                    at_5=_share(ids[:5], question),
                    at_10=_share(ids[:10], question),
                    at_20=_share(ids[:20], question),
                    tokens=weigh_text(recalled.text),
                    stored_bytes=len(recalled.stored_text) + len(record),
                    cpu_ms=cpu_ms,
                )
            )
        await index.close()
        await store.close()
    return answered


async def _ask_before(store: Store, talk: Conversation, share: float, *, person: str) -> None:
    """Store turns in which questions were asked, and the answer said nothing."""
    last = max(message.at for message in talk.messages)
    for number, question in enumerate(talk.questions[: round(share * len(talk.questions))]):
        writer = _SessionWriter(store, f"asked.{number}", person)
        asked = Said("", "", person, False, question.text, last + 600 + number)
        reply = Said("", "", "", True, "I am not sure about that.", last + 601 + number)
        await writer.finish_turn([asked], reply, {})


async def ask_over_http(
    talk: Conversation, *, directory: Path, use: EmbeddingsMode = "table", max_tokens: int | None = None
) -> list[Answered]:
    """Store a conversation in a home, run `everhold up` on it, and read what the model server is asked."""
    person = f"http:{getpass.getuser()}"
    home = Home(directory).create()
    store = SqliteStore.open(home.store, chance=_Chance(), synchronous="OFF")
    await store_conversation(store, talk, person=person)
    index = MemoryIndex(home.index, embeddings=use)
    while await index.catch_up(store):
        pass
    while await index.fill_embeddings(64):
        pass
    await index.close()
    await store.close()
    texts = {message.id: _flatten(message.text) for message in talk.messages}
    answered = []
    with model() as url:
        config = CONFIG.format(url=url, window=WINDOW_TOKENS, recall=5)
        if max_tokens is not None:
            config = config.replace("deadline_seconds: 5", f"deadline_seconds: 5, max_tokens: {max_tokens}")
        gateway = Gateway(directory, config=config)
        line = http.client.HTTPConnection("127.0.0.1", gateway.port)
        recorded = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port)
        try:
            for number, question in enumerate(talk.questions):
                before = gateway.cpu()
                _post_question(line, question.text, session=f"question-{number}")
                cpu_ms = (gateway.cpu() - before) * 1e3
                recorded.request("GET", "/last")
                request = json.loads(recorded.getresponse().read())
                shown = [str(it["content"]) for it in request["messages"] if it["role"] != "system"]
                block = next((text[text.index("<recalled ") :] for text in shown if "<recalled " in text), "")
                answered.append(
                    Answered(
                        kind=question.kind,
                        in_request=_share_in_text(question, texts, _flatten("\n".join(shown))),
                        tokens=weigh_text(block),
                        cpu_ms=cpu_ms,
                    )
                )
        finally:
            line.close()
            recorded.close()
            gateway.close()
    return answered


class _Chance:
    def bytes(self, n: int, /) -> bytes:
        return random.randbytes(n)

    def random(self) -> float:
        return random.random()


def _post_question(line: http.client.HTTPConnection, text: str, *, session: str) -> None:
    body = json.dumps({"model": "main", "messages": [{"role": "user", "content": text}]})
    headers = {"content-type": "application/json", "x-everhold-session": session, "authorization": CREDENTIAL}
    line.request("POST", "/v1/chat/completions", body, headers)
    response = line.getresponse()
    said = response.read()
    assert response.status == 200, (response.status, said)


# -- counting ----------------------------------------------------------------------------------------------------------


def _flatten(text: str) -> str:
    """Return a text without line breaks and quotation marks of lines, so that it is found in a quoted block."""
    return " ".join(re.sub(r"\n\| ?", "\n", text).split())


def _share(ids: Sequence[str], question: Question) -> float:
    return len(question.evidence & set(ids)) / len(question.evidence)


def _share_in_text(question: Question, texts: Mapping[str, str], shown: str) -> float:
    """Return the share of the evidence whose words are in a text."""
    return sum(_is_in_text(texts[id], shown) for id in question.evidence) / len(question.evidence)


def _is_in_text(text: str, shown: str) -> bool:
    if len(text) <= PASSAGE_CHARS:
        return text in shown
    pieces = (text[start : start + PASSAGE_CHARS] for start in range(0, len(text) - PASSAGE_CHARS, PASSAGE_CHARS // 2))
    return any(piece in shown for piece in pieces)


def summarize(answered: Sequence[Answered]) -> dict[str, Interval | float]:
    """Return the figures of one run."""
    shares = {name: compute_interval([getattr(one, name) for one in answered]) for name in ("in_request", "at_10")}
    kept = sorted(one.cpu_ms for one in answered)
    return {
        **shares,
        "at_5": fmean(one.at_5 for one in answered),
        "at_20": fmean(one.at_20 for one in answered),
        "tokens": fmean(one.tokens for one in answered),
        "max_tokens": max(one.tokens for one in answered),
        "stored_bytes": fmean(one.stored_bytes for one in answered),
        "cpu_ms": kept[len(kept) // 2],
    }
