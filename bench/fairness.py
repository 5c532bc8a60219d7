"""One abusive client beside an ordinary one: half-open heads, slow bodies, many streams and wrong tokens."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator

from bench.gateway import Gateway
from bench.in_process import temporary_directory
from bench.table import Row, at_most, interleave, median, ratio

LIMIT = 2.0
REQUESTS = 100
PAUSE_SECONDS = 0.01
"""Between two requests of the honest client, which stays below its quota."""
HALF_OPEN = 620
SLOW_BODIES = 64
STREAMS = 64
WRONG_TOKENS = 50
TOKENS = {"BENCH_HONEST": "honest-token-0123456789abcdefghij", "BENCH_ABUSIVE": "abusive-token-0123456789abcdefghi"}
CONFIG = """\
http: {tokens: [{name: honest, token_env: BENCH_HONEST}, {name: abusive, token_env: BENCH_ABUSIVE}]}
quotas: {member: {messages_per_minute: 0, waiting_messages: 0}, chat: {messages_per_minute: 0, waiting_messages: 0},
  account: {messages_per_minute: 0}}
"""


def fairness_rows(rounds: int) -> list[Row]:
    with temporary_directory() as directory:
        directory.chmod(0o700)
        env = directory / ".env"
        env.write_text("".join(f"{name}={token}\n" for name, token in TOKENS.items()))
        env.chmod(0o600)
        gateway = Gateway(directory, config=CONFIG)
        try:

            def attacked() -> float:
                with abuse(gateway.port):
                    return measure_honest(gateway.port)

            found = interleave(rounds, {"alone": lambda: measure_honest(gateway.port), "attacked": attacked})
        finally:
            gateway.close()
    return [
        at_most(
            "a message over HTTP beside an abusive client",
            median(found["attacked"]) * 1e3,
            "ms",
            LIMIT,
            beside=f"alone {median(found['alone']) * 1e3:.2f} ms",
            ratio=ratio(found["attacked"], found["alone"]),
        )
    ]


def measure_honest(port: int) -> float:
    """Return the median time of an accepted message, each on a connection of its own."""
    times = []
    for number in range(REQUESTS):
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        body = json.dumps({"chat": f"c{number % 10}", "text": "/whoami"})
        connection.request("POST", "/api/messages", body, make_headers(TOKENS["BENCH_HONEST"]))
        response = connection.getresponse()
        response.read()
        assert response.status == 202, response.status
        connection.close()
        times.append(time.perf_counter() - began)
        time.sleep(PAUSE_SECONDS)
    return median(times)


def make_headers(token: str) -> dict[str, str]:
    """Return the headers of a caller behind a proxy, where everybody has one address."""
    return {"authorization": f"Bearer {token}", "x-forwarded-for": "203.0.113.1", "host": "bench.example"}


@contextlib.contextmanager
def abuse(port: int) -> Iterator[None]:
    """Do everything at once that a hostile client can do without many machines."""
    own = "".join(f"{name}: {value}\r\n" for name, value in make_headers(TOKENS["BENCH_ABUSIVE"]).items())
    with contextlib.ExitStack() as opened:

        def open_with(beginning: str) -> None:
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            with contextlib.suppress(OSError):  # the gateway may have closed it already
                connection.sendall(beginning.encode())

        for _ in range(STREAMS):
            open_with(f"GET /api/events HTTP/1.1\r\n{own}\r\n")
        for _ in range(SLOW_BODIES):
            open_with(f"POST /api/messages HTTP/1.1\r\n{own}content-length: 1000\r\n\r\n{{")
        for _ in range(HALF_OPEN):
            open_with("GET /health HTTP/1.1\r\nhost: bench.example\r\nx-slow: ")
        for number in range(WRONG_TOKENS):
            open_with(
                f"GET /health HTTP/1.1\r\nhost: bench.example\r\nx-forwarded-for: 203.0.113.1\r\n"
                f"authorization: Bearer guess-{number}\r\n\r\n"
            )
        yield
