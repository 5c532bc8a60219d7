"""Measure which instructions of people a compression keeps, in several languages, and how large the context gets.

The summariser is bland: its summary contains nothing of what was said. So only the rule of `core/compression.py` can
keep a sentence. The sentences are in `wording/`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import resources
from typing import Final

from msgspec import Struct

from everhold.core import compression
from everhold.core.entries import Compressed
from everhold.evals.conversation import EvalConversation, EvalToolCall, EvalTurn
from everhold.evals.runner import ReplayRuntimes, replay_conversation, start_gateway
from everhold.ports.model import ModelRequest, ModelResponse

LANGUAGES: Final = ("en", "de", "es", "fr", "zh", "ar")
WINDOW_TOKENS: Final = 32_000
KEPT_EXCHANGES: Final = 6
"""The default of `keep_exchanges`."""
SEED: Final = 17
"""The same for each language, so the conversations differ in their sentences only."""
REQUESTS: Final = 50
LAST_REQUESTS: Final = 8
"""The conversation ends with so many requests, so no sentence is in the exchanges that stay as they are."""
WORKED_ON_SHARE: Final = 0.3
"""How many of the instructions make the agent use a tool at once, as many a correction does."""
BLAND_SUMMARY: Final = " ".join(
    ["The people and the assistant worked on several matters, looked things up and talked about how to go on."] * 16
)


TOKENS_BEFORE: Final = {"en": 10_277, "de": 10_308, "es": 10_293, "fr": 10_297, "zh": 10_282, "ar": 10_295}
"""The last contexts of the same conversations with the rule before this one, which searched for English and German
words (commit a8acf06).
"""


class SentenceSet(Struct, frozen=True, kw_only=True):
    """The sentences of one language."""

    kept: tuple[str, ...]
    chatter: tuple[str, ...]
    requests: tuple[str, ...]


class KeptWordsScore(Struct, frozen=True, kw_only=True):
    """What is left of one conversation."""

    language: str
    sentences: int
    missing: tuple[str, ...]
    """The instructions and corrections that are not in the last context."""
    chatter_kept: int
    compressions: int
    context_tokens: int
    """The size of the last context."""

    @property
    def share(self) -> float:
        return 1 - len(self.missing) / self.sentences

    @property
    def growth(self) -> float:
        """The size of the context, as a multiple of the size before this rule."""
        return self.context_tokens / TOKENS_BEFORE[self.language]


class BlandModel:
    """A summariser that keeps nothing."""

    name = "bland"
    context_tokens = 200_000

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        return ModelResponse(text=BLAND_SUMMARY, model=self.name)


def load_sentences(language: str) -> SentenceSet:
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    text = (resources.files("everhold.evals") / "wording" / f"{language}.txt").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("["):
            current = parts.setdefault(line.strip("[]"), [])
        elif line:
            current.append(line)
    return SentenceSet(**{name: tuple(lines) for name, lines in parts.items()})


def build_conversation(language: str) -> EvalConversation:
    """Return a long conversation in which the sentences are spread between requests with tool output."""
    sentences, chance = load_sentences(language), random.Random(SEED)  # nosec B311  # a fixed seed
    turns = [_build_instruction(text, chance) for text in sentences.kept]
    turns += [EvalTurn(who="Ada", text=text, reply=_build_acknowledgement(chance)) for text in sentences.chatter]
    turns += [_build_request(sentences.requests, chance) for _ in range(REQUESTS)]
    chance.shuffle(turns)
    turns += [_build_request(sentences.requests, chance) for _ in range(LAST_REQUESTS)]
    return EvalConversation(name=f"kept-words-{language}", language=language, turns=tuple(turns))


def _build_instruction(text: str, chance: random.Random) -> EvalTurn:
    calls = (_build_call(chance),) if chance.random() < WORKED_ON_SHARE else ()
    return EvalTurn(who="Ada", text=text, tool_calls=calls, reply=_build_acknowledgement(chance))


def _build_acknowledgement(chance: random.Random) -> str:
    return "✓ " + "." * chance.randint(1, 160)


def _build_request(requests: tuple[str, ...], chance: random.Random) -> EvalTurn:
    calls = tuple(_build_call(chance) for _ in range(chance.randint(1, 3)))
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


def measure_kept_words(language: str) -> KeptWordsScore:
    """Replay the conversation of a language in a window that fills up several times, and look at the last context."""
    conversation, sentences = build_conversation(language), load_sentences(language)
    runtimes = ReplayRuntimes(conversation, BlandModel(), window=WINDOW_TOKENS)
    runtimes.settings.update(keep_turns=KEPT_EXCHANGES)
    with start_gateway(runtimes) as gateway:
        sessions = replay_conversation(gateway, runtimes, conversation, compressions=0, keep=KEPT_EXCHANGES)
        gateway.run(gateway.control.compress_session(sessions[-1], keep=KEPT_EXCHANGES))
        gateway.run_until_idle()
        gateway.send_message("…", who="Ada", kind="dm")
        shown = runtimes.replay_model.last_request
        assert shown is not None
        log = gateway.run(gateway.store.list_entries(sessions[-1]))
    text = "\n".join(message.text for message in shown.messages)
    return KeptWordsScore(
        language=language,
        sentences=len(sentences.kept),
        missing=tuple(one for one in sentences.kept if one not in text),
        chatter_kept=sum(one in text for one in sentences.chatter),
        compressions=sum(isinstance(entry.body, Compressed) for entry in log),
        context_tokens=compression.estimate_message_tokens(shown.messages),
    )
