"""What the checks of a turn cost: the same gateway with each of them in force, and replaced by a constant.

One process alternates between short blocks of turns, so both sides have the same caches, store and load. A member sends
the messages, because owners and operators have no quotas.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterator
from typing import Final

from bench.gateway import CONFIG, Chat, Gateway, model
from bench.in_process import temporary_directory
from bench.table import Row, at_most, median, ratio
from bench.unchecked import CONSTANTS, COUNT, MEMBER_NAME, SWITCHED
from everhold.infra.home import Home

LIMIT: Final = 1.03
"""How much more CPU a turn may take with its checks than without them."""
BLOCKS_PER_ROUND: Final = 20
BLOCK_TURNS: Final = 20
WARM_UP_TURNS: Final = 3
WINDOW_TOKENS: Final = 100_000
TOKEN: Final = "benchmark-member-token-0123456789abcdef"
QUOTAS: Final = """\
http: {tokens: [{name: %s, token_env: BENCH_MEMBER}]}
quotas:
  member: {messages_per_minute: 1000000, conversations_per_day: 1000000}
  chat: {messages_per_minute: 1000000}
  account: {messages_per_minute: 1000000, conversations_per_day: 1000000}
  token: {requests_per_second: 100000}
"""
"""Limits that the measurement does not reach. They are counted all the same."""


def security_rows(rounds: int) -> list[Row]:
    everything = ",".join(CONSTANTS)
    with open_gateway() as side:
        calls = side.count_calls()
        assert all(calls[name] for name in CONSTANTS), calls
        found = measure(side, rounds * BLOCKS_PER_ROUND, ["", *CONSTANTS, everything])
    whole = found[""]
    rows = [
        _build_row("turn of a member over HTTP with all checks, CPU", whole, found[everything], "without", limit=LIMIT)
    ]
    return rows + [
        _build_row(f"the same, {name} ({calls[name]:.3g} calls)", whole, found[name], "with a constant")
        for name in CONSTANTS
    ]


def measure(side: MemberSide, rounds: int, variants: list[str]) -> dict[str, list[float]]:
    """CPU milliseconds of a turn by variant and round. The order changes, so each variant follows each other one."""
    found: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(rounds):
        start = number % len(variants)
        order = variants[start:] + variants[:start]
        for variant in order if number // len(variants) % 2 else reversed(order):
            side.order(variant)
            found[variant].append(side.spend_block())
    return found


def _build_row(what: str, ours: list[float], theirs: list[float], beside: str, *, limit: float | None = None) -> Row:
    low, high = compute_interval([a / b for a, b in zip(ours, theirs, strict=True)])
    beside = f"{beside} {median(theirs):.3f} ms; 95 % between {low:.3f} and {high:.3f} x"
    share = ratio(ours, theirs)
    if limit is None:
        return Row(what=what, value=median(ours), unit="ms", beside=beside, ratio=share)
    return at_most(what, median(ours), "ms", limit, beside=beside, ratio=share)


def compute_interval(values: list[float]) -> tuple[float, float]:
    """Return the two values between which the true median is with a probability of 95 %."""
    ordered, half = sorted(values), len(values) / 2
    away = 0.98 * math.sqrt(len(values))
    return ordered[max(0, math.floor(half - away))], ordered[min(len(ordered) - 1, math.ceil(half + away))]


class MemberSide:
    """A gateway and a member who talks to it."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.chat = Chat(gateway.port, "c", f"Bearer {TOKEN}")
        self._numbers = itertools.count()
        for _ in range(3):
            self.spend_block()

    def order(self, text: str) -> dict[str, int]:
        """Say which checks are left out, and return the calls that were counted since the order before."""
        process = self.gateway.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        counts: dict[str, int] = {}
        while (line := process.stdout.readline().rstrip()) != SWITCHED:
            assert line, "the gateway ended"
            if line.startswith("{"):
                counts = json.loads(line)
        return counts

    def count_calls(self) -> dict[str, float]:
        """Return how often each check is called in a turn."""
        self.order(COUNT)
        self.spend_block()
        found = self.order("")
        return {name: found.get(name, 0) / (WARM_UP_TURNS + BLOCK_TURNS) for name in CONSTANTS}

    def spend_block(self) -> float:
        """Return the CPU milliseconds of a turn in a new conversation. Every block has the same work."""
        self.chat.chat = f"c{next(self._numbers)}"
        for _ in range(WARM_UP_TURNS):
            self.chat.turn()
        began = self.gateway.cpu()
        for _ in range(BLOCK_TURNS):
            self.chat.turn()
        return (self.gateway.cpu() - began) / BLOCK_TURNS * 1e3


@contextlib.contextmanager
def open_gateway() -> Iterator[MemberSide]:
    with temporary_directory() as directory, model() as url:
        env = Home(directory).create().env
        env.touch(mode=0o600)
        env.write_text(f"BENCH_MEMBER={TOKEN}\n")
        config = CONFIG.format(url=url, window=WINDOW_TOKENS, recall=0) + QUOTAS % MEMBER_NAME
        gateway = Gateway(directory, config=config, program="bench.unchecked")
        try:
            side = MemberSide(gateway)
            yield side
            side.chat.close()
        finally:
            gateway.close()
