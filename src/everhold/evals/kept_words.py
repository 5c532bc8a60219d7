"""Measure which instructions of people a compression keeps, in several languages, and how large the context gets.

The summariser is bland: its summary contains nothing of what was said. So only the rule of `core/compression.py` can
keep a sentence. The rule was made with the sentences in `wording/`. Those in `held_out/` were measured while it
changed; the conversations in `held_out_20261118/` were measured once.
"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from everhold.core import compression
from everhold.core.entries import Compressed
from everhold.evals.conversation import EvalConversation, EvalToolCall, EvalTurn
from everhold.evals.runner import ReplayRuntimes, replay_conversation, start_gateway
from everhold.ports.model import ModelRequest, ModelResponse

SentenceOrigin: TypeAlias = Literal["wording", "held_out", "held_out_20261118"]
ConversationKind: TypeAlias = Literal["work", "talk"]
"""`work`: many requests make the agent use tools, whose output is long. `talk`: it only answers."""

LANGUAGES: Final[dict[SentenceOrigin, tuple[str, ...]]] = {
    "wording": ("en", "de", "es", "fr", "zh", "ar"),
    "held_out": ("en", "de", "es", "fr", "ja", "ru"),
    "held_out_20261118": ("en", "de", "es", "fr", "ja", "ru"),
}
_MARKED_PATTERN: Final = re.compile(r"\[\[(.+?)\]\]")
WINDOW_TOKENS: Final = 32_000
KEPT_EXCHANGES: Final = 6
"""The default of `keep_exchanges`."""
SEED: Final = 17
"""The same for each language, so the conversations differ in their sentences only."""
REQUESTS: Final[dict[ConversationKind, int]] = {"work": 50, "talk": 300}
"""How many requests lie between the sentences, so that the window fills up several times."""
LAST_REQUESTS: Final = 8
"""The conversation ends with so many requests, so no sentence is in the exchanges that stay as they are."""
WORKED_ON_SHARE: Final = 0.3
"""How many of the instructions make the agent use a tool at once, as many a correction does."""
CONVERSATION_WINDOW_TOKENS: Final = 16_000
"""The window of whole conversations, which are shorter than those that are made of sentences."""
CONVERSATION_COMPRESSIONS: Final[dict[ConversationKind, int]] = {"work": 0, "talk": 3}
"""How often a whole conversation is compressed on request. 0: whenever the window fills up."""
ROW_FACTOR: Final = 8
"""How many lines the output of a tool has for each line that the file asks for, so that the window fills up."""
BLAND_SUMMARY: Final = " ".join(
    ["The people and the assistant worked on several matters, looked things up and talked about how to go on."] * 16
)


TOKENS_BEFORE: Final[dict[tuple[SentenceOrigin, ConversationKind, str], tuple[int, int]]] = {
    ("wording", "work", "en"): (10_246, 12_312),
    ("wording", "work", "de"): (10_272, 12_320),
    ("wording", "work", "es"): (10_262, 12_317),
    ("wording", "work", "fr"): (10_266, 12_322),
    ("wording", "work", "zh"): (10_251, 12_291),
    ("wording", "work", "ar"): (10_264, 12_350),
    ("wording", "talk", "en"): (980, 8_694),
    ("wording", "talk", "de"): (1_716, 8_952),
    ("wording", "talk", "es"): (999, 8_755),
    ("wording", "talk", "fr"): (997, 8_745),
    ("wording", "talk", "zh"): (982, 8_583),
    ("wording", "talk", "ar"): (994, 8_958),
    ("held_out", "work", "en"): (7_841, 12_829),
    ("held_out", "work", "de"): (7_870, 12_655),
    ("held_out", "work", "es"): (7_839, 12_752),
    ("held_out", "work", "fr"): (7_850, 12_771),
    ("held_out", "work", "ja"): (7_854, 12_804),
    ("held_out", "work", "ru"): (9_180, 12_582),
    ("held_out", "talk", "en"): (1_017, 8_905),
    ("held_out", "talk", "de"): (1_050, 9_057),
    ("held_out", "talk", "es"): (1_017, 8_820),
    ("held_out", "talk", "fr"): (1_024, 8_851),
    ("held_out", "talk", "ja"): (1_034, 8_976),
    ("held_out", "talk", "ru"): (1_058, 9_297),
    ("held_out_20261118", "work", "en"): (725, 8_436),
    ("held_out_20261118", "work", "de"): (674, 6_403),
    ("held_out_20261118", "work", "es"): (617, 7_680),
    ("held_out_20261118", "work", "fr"): (627, 7_752),
    ("held_out_20261118", "work", "ja"): (648, 7_146),
    ("held_out_20261118", "work", "ru"): (656, 35_030),
    ("held_out_20261118", "talk", "en"): (725, 1_112),
    ("held_out_20261118", "talk", "de"): (674, 997),
    ("held_out_20261118", "talk", "es"): (617, 902),
    ("held_out_20261118", "talk", "fr"): (627, 912),
    ("held_out_20261118", "talk", "ja"): (648, 997),
    ("held_out_20261118", "talk", "ru"): (656, 1_086),
}
"""The last context, and the mean of all, of the same conversations with the rule that searched for English and German
words (commit 33c06b3).
"""


class SentenceGroup(Struct, frozen=True, kw_only=True):
    """Exchanges that follow each other: a text of a person and the answer to it. An empty answer is made up."""

    exchanges: tuple[tuple[str, str], ...]


class SentenceSet(Struct, frozen=True, kw_only=True):
    """The sentences of one language."""

    kept: tuple[str, ...]
    chatter: tuple[str, ...]
    requests: tuple[str, ...]
    groups: tuple[SentenceGroup, ...] = ()
    turns: tuple[EvalTurn, ...] = ()
    """The turns of whole conversations, with the complete output of the tools."""


class KeptWordsScore(Struct, frozen=True, kw_only=True):
    """What is left of one conversation."""

    origin: SentenceOrigin
    kind: ConversationKind
    language: str
    sentences: int
    missing: tuple[str, ...]
    """The instructions and corrections that are not in the last context."""
    chatter: int
    chatter_kept: int
    compressions: int
    context_tokens: int
    """The size of the last context, right after a compression."""
    mean_tokens: int
    """The size of the context in the mean of all requests."""

    @property
    def share(self) -> float:
        return 1 - len(self.missing) / self.sentences

    @property
    def growth(self) -> float:
        """The size of the last context, as a multiple of the size with the rule before."""
        return self.context_tokens / TOKENS_BEFORE[self.origin, self.kind, self.language][0]

    @property
    def mean_growth(self) -> float:
        """The same for the mean of all contexts."""
        return self.mean_tokens / TOKENS_BEFORE[self.origin, self.kind, self.language][1]


class BlandModel:
    """A summariser that keeps nothing."""

    name = "bland"
    context_tokens = 200_000

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        return ModelResponse(text=BLAND_SUMMARY, model=self.name)


def load_sentences(origin: SentenceOrigin, language: str) -> SentenceSet:
    text = (resources.files("everhold.evals") / origin / f"{language}.txt").read_text("utf-8")
    if origin == "held_out_20261118":
        return _parse_turns(text)
    return _parse_sections(text) if origin == "wording" else _parse_groups(text)


def _parse_sections(text: str) -> SentenceSet:
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            current = parts.setdefault(line.strip("[]"), [])
        elif line:
            current.append(line)
    kept, chatter, requests = (tuple(parts[name]) for name in ("kept", "chatter", "requests"))
    groups = tuple(SentenceGroup(exchanges=((said, ""),)) for said in (*kept, *chatter))
    return SentenceSet(kept=kept, chatter=chatter, requests=requests, groups=groups)


def _parse_groups(text: str) -> SentenceSet:
    said: dict[str, list[str]] = {"K": [], "C": [], "R": []}
    groups = []
    for block in text.split("\n\n"):
        lines = [(line[0], line[3:]) for line in block.splitlines() if line]
        for mark, sentence in lines:
            if mark in said:
                said[mark].append(sentence)
        if lines[0][0] != "R":
            groups.append(SentenceGroup(exchanges=tuple(_pair_lines(lines))))
    return SentenceSet(kept=tuple(said["K"]), chatter=tuple(said["C"]), requests=tuple(said["R"]), groups=tuple(groups))


def _pair_lines(lines: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for (_, question), (mark, answer) in zip(lines[::2], lines[1::2], strict=True):
        assert mark == "A", f"{answer!r} answers nothing"
        yield question, answer


def _parse_turns(text: str) -> SentenceSet:
    """Read whole conversations: a person's message, the calls of tools and the answer, in this order."""
    chance = random.Random(SEED)  # nosec B311  # a fixed seed
    kept, chatter, turns = [], [], []
    for line in text.splitlines():
        mark, _, rest = line.partition(": ")
        if mark == "K":
            kept.append(match[1] if (match := _MARKED_PATTERN.search(rest)) else rest)
        elif mark == "C":
            chatter.append(rest)
        if mark in ("K", "C"):
            turns.append(EvalTurn(who="Ada", text=rest.replace("[[", "").replace("]]", "")))
        elif mark == "T":
            turns[-1] = structs.replace(turns[-1], tool_calls=(*turns[-1].tool_calls, _parse_call(rest, chance)))
        elif mark == "A":
            turns[-1] = structs.replace(turns[-1], reply=rest)
    return SentenceSet(kept=tuple(kept), chatter=tuple(chatter), requests=(), turns=tuple(turns))


def _parse_call(text: str, chance: random.Random) -> EvalToolCall:
    head, _, first = text.partition(" | ")
    tool, _, rows = head.rpartition(" ")
    lines = [_vary_figures(first, chance) for _ in range(int(rows) * ROW_FACTOR)]
    query = f"{chance.getrandbits(40):010x}"
    return EvalToolCall(tool=tool, arguments={"query": query}, result="\n".join((first, *lines)), changes=False)


def _vary_figures(line: str, chance: random.Random) -> str:
    return re.sub(r"\d", lambda _: str(chance.randint(0, 9)), line)


def build_conversation(origin: SentenceOrigin, language: str, kind: ConversationKind) -> EvalConversation:
    """Return a long conversation in which the sentences are spread between requests."""
    sentences, chance = load_sentences(origin, language), random.Random(SEED)  # nosec B311  # a fixed seed
    if sentences.turns:
        turns = [turn if kind == "work" else _shorten_results(turn) for turn in sentences.turns]
        return EvalConversation(name=f"{origin}-{kind}-{language}", language=language, turns=tuple(turns))
    kept = set(sentences.kept)
    groups = [
        [_build_sentence(text, reply, chance, works=kind == "work" and text in kept) for text, reply in group.exchanges]
        for group in sentences.groups
    ]
    groups += [[_build_request(sentences.requests, chance, kind)] for _ in range(REQUESTS[kind])]
    chance.shuffle(groups)
    turns = [turn for group in groups for turn in group]
    turns += [_build_request(sentences.requests, chance, kind) for _ in range(LAST_REQUESTS)]
    return EvalConversation(name=f"{origin}-{kind}-{language}", language=language, turns=tuple(turns))


def _shorten_results(turn: EvalTurn) -> EvalTurn:
    calls = (structs.replace(call, result=call.result.partition("\n")[0]) for call in turn.tool_calls)
    return structs.replace(turn, tool_calls=tuple(calls))


def _build_sentence(text: str, reply: str, chance: random.Random, *, works: bool) -> EvalTurn:
    calls = (_build_call(chance),) if works and chance.random() < WORKED_ON_SHARE else ()
    return EvalTurn(who="Ada", text=text, tool_calls=calls, reply=reply or _build_acknowledgement(chance))


def _build_acknowledgement(chance: random.Random) -> str:
    return "✓ " + "." * chance.randint(1, 160)


def _build_request(requests: tuple[str, ...], chance: random.Random, kind: ConversationKind) -> EvalTurn:
    calls = tuple(_build_call(chance) for _ in range(chance.randint(1, 3))) if kind == "work" else ()
    reply = " ".join(
        f"{n}. item-{chance.randint(100, 999)}: {chance.random():.4f}" for n in range(chance.randint(6, 24))
    )
    return EvalTurn(
        who="Ada", text=f"{chance.choice(requests)} ({chance.randint(1000, 9999)})", tool_calls=calls, reply=reply
    )


def _build_call(chance: random.Random) -> EvalToolCall:
    lines = (
        f"2026-03-{chance.randint(1, 28):02} {chance.randint(0, 23):02}:{chance.randint(0, 59):02} "
        f"{chance.choice(('INFO', 'WARN', 'ERROR'))} worker-{chance.randint(1, 40)} id={chance.getrandbits(48):012x} "
        f"took {chance.randint(1, 9000)} ms"
        for _ in range(chance.randint(30, 90))
    )
    query = f"{chance.getrandbits(40):010x}"
    return EvalToolCall(tool="lookup", arguments={"query": query}, result="\n".join(lines), changes=False)


def measure_kept_words(origin: SentenceOrigin, language: str, kind: ConversationKind = "work") -> KeptWordsScore:
    """Replay the conversation of a language in a window that fills up several times, and look at the last context."""
    conversation, sentences = build_conversation(origin, language, kind), load_sentences(origin, language)
    whole = bool(sentences.turns)
    window = CONVERSATION_WINDOW_TOKENS if whole and kind == "work" else WINDOW_TOKENS
    compressions = CONVERSATION_COMPRESSIONS[kind] if whole else 0
    runtimes = ReplayRuntimes(conversation, BlandModel(), window=window)
    runtimes.settings.update(keep_turns=KEPT_EXCHANGES)
    with start_gateway(runtimes) as gateway:
        sessions = replay_conversation(gateway, runtimes, conversation, compressions=compressions, keep=KEPT_EXCHANGES)
        gateway.run(gateway.control.compress_session(sessions[-1], keep=KEPT_EXCHANGES))
        gateway.run_until_idle()
        gateway.send_message("…", who="Ada", kind="dm")
        shown = runtimes.replay_model.last_request
        assert shown is not None
        log = gateway.run(gateway.store.list_entries(sessions[-1]))
    text = "\n".join(message.text for message in shown.messages)
    return KeptWordsScore(
        origin=origin,
        kind=kind,
        language=language,
        sentences=len(sentences.kept),
        missing=tuple(one for one in sentences.kept if one not in text),
        chatter=len(sentences.chatter),
        chatter_kept=sum(one in text for one in sentences.chatter),
        compressions=sum(isinstance(entry.body, Compressed) for entry in log),
        context_tokens=compression.estimate_message_tokens(shown.messages),
        mean_tokens=round(statistics.fmean(runtimes.replay_model.request_tokens)),
    )
