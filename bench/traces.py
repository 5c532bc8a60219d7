"""A turn over HTTP with and without the export of its traces, in two gateways that take turns."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.gateway import CONFIG, HERE, RECALL_SECONDS, TEAM, Chat, Gateway, model
from bench.in_process import temporary_directory
from bench.table import Row, at_most, interleave, median, ratio

LIMIT = 1.15
TURNS = 200
SETTLE_SECONDS = 7.0
"""After the turns of a round, so that its spans are exported within it. The other gateway waits as long."""
WINDOW_TOKENS = 1_000_000


def trace_rows(rounds: int) -> list[Row]:
    config = "quotas: {member: {messages_per_minute: 1000000}, chat: {messages_per_minute: 1000000}, "
    config += "account: {messages_per_minute: 1000000}}\n"
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(model())
        collector = stack.enter_context(run_collector())
        config += CONFIG.format(url=url, window=WINDOW_TOKENS, recall=RECALL_SECONDS) + TEAM
        gateways = {}
        for name, environ in (
            ("off", {}),
            ("on", {"OTEL_EXPORTER_OTLP_ENDPOINT": collector}),
        ):
            directory = stack.enter_context(temporary_directory())
            gateways[name] = gateway = Gateway(directory, config=config, environ=environ)
            stack.callback(gateway.close)
            talk(gateway, TURNS // 4)
        found = interleave(max(3, rounds), {name: functools.partial(talk, it, TURNS) for name, it in gateways.items()})
    return [
        at_most(
            "turn over HTTP, traces exported, CPU",
            median(found["on"]),
            "ms",
            LIMIT,
            beside=f"without traces {median(found['off']):.2f} ms",
            ratio=ratio(found["on"], found["off"]),
        )
    ]


def talk(gateway: Gateway, turns: int) -> float:
    """CPU milliseconds of a turn, with what follows it."""
    chat = Chat(gateway.port, "c")
    before = gateway.cpu()
    for _ in range(turns):
        chat.turn()
    chat.close()
    time.sleep(SETTLE_SECONDS)
    return (gateway.cpu() - before) / turns * 1e3


@contextlib.contextmanager
def run_collector() -> Iterator[str]:
    """Run a collector in its own process; yield its URL."""
    command = [sys.executable, str(HERE / "otlp_stub.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()
