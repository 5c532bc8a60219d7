"""Measure everything and print one table. With --write, write it to docs/benchmarks.md. `python -m bench recall --data
PATH` measures instead how much of the evidence for a question reaches the request.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from bench.accept import accept_rows
from bench.audit import audit_rows
from bench.bursts import burst_rows
from bench.compression import compression_rows
from bench.conditions import ROOT, conditions
from bench.context import context_rows
from bench.destroyed_disk import destroyed_disk_rows
from bench.draining import draining_rows
from bench.due_cursors import due_cursor_rows
from bench.fairness import fairness_rows
from bench.gateway import concurrent_accept_rows, gateway_rows, start_rows
from bench.hermes_import import hermes_import_rows
from bench.kept_words import kept_words_rows
from bench.many_sessions import many_sessions_rows
from bench.matrix import matrix_rows
from bench.memories import memory_rows
from bench.monitoring import monitoring_rows
from bench.peers import peer_rows
from bench.platform_cost import platform_cost_rows
from bench.plugin_processes import plugin_process_rows
from bench.postgres import postgres_rows
from bench.postgres_hosts import postgres_hosts_rows
from bench.recall.__main__ import main as measure_recall
from bench.recalling import memory_growth_rows, recalling_rows
from bench.security import security_rows
from bench.summaries import summary_rows
from bench.table import Row, render
from bench.telegram import telegram_rows
from bench.traces import trace_rows
from bench.turn import flat_rows, turn_rows
from everhold.cli.commands.up import freeze_garbage_collector

PAGE = ROOT / "docs" / "benchmarks.md"

WORKS: dict[str, Callable[[int], list[Row]]] = {
    "accept": accept_rows,
    "turn": turn_rows,
    "flat": flat_rows,
    "recall-cost": recalling_rows,
    "memory-growth": memory_growth_rows,
    "context": context_rows,
    "due-cursors": due_cursor_rows,
    "peers": peer_rows,
    "gateway": gateway_rows,
    "start": start_rows,
    "many-sessions": many_sessions_rows,
    "concurrent-accept": concurrent_accept_rows,
    "compression": compression_rows,
    "summaries": summary_rows,
    "kept-words": kept_words_rows,
    "memories": memory_rows,
    "plugin-processes": plugin_process_rows,
    "hermes-import": hermes_import_rows,
    "matrix": matrix_rows,
    "telegram": telegram_rows,
    "platform-cost": platform_cost_rows,
    "bursts": burst_rows,
    "fairness": fairness_rows,
    "draining": draining_rows,
    "destroyed-disk": destroyed_disk_rows,
    "audit": audit_rows,
    "monitoring": monitoring_rows,
    "traces": trace_rows,
    "security": security_rows,
    "postgres": postgres_rows,
    "postgres-hosts": postgres_hosts_rows,
}


def page(rows: list[Row], before: str, after: str) -> str:
    return f"""# Benchmarks

`make bench ARGS=--write` writes this page with the numbers of the last run. Every comparison is made in one run, in
interleaved rounds, and the ratio is the median of the rounds' ratios, so a shared machine disturbs both sides equally.
Absolute numbers apply to this machine only.

- before: {before}
- after: {after}

{render(rows)}

- **Durable accept**: from the arrival of a message to the end of its commit, with `synchronous=FULL`. The comparison is
  a loop that only writes prepared rows, with the same group commit.
- **Turn**: an instant model and a keyed platform run in the same process, so only everhold is measured: accept, begin,
  end, and delivery with its receipt. CPU of all threads; Python's garbage collector is set as `everhold up` sets it.
- **Cold**: the store was just opened and nothing is cached.
- **Append a turn**: two durable commits, the message and the reply. LangGraph runs a graph of one node.
- **Load**: everhold reads its context window, with a compression every 200 turns. The peers read their whole history,
  which is their default.
- **Turn over HTTP**: `everhold up` runs in its own process, the model server in another. "A question and its answer" is
  `POST /v1/chat/completions`; "posted and watched" is `POST /api/messages`, then the reply on `/api/events`. CPU of the
  whole gateway from /proc, with compressions, reviews, index and log lines, but without recall, which hermes-agent does
  not have. The cost of recall has its own rows. The speed of the machine has a row too, because it varies by half
  within an hour. hermes-agent's gateway class runs with an adapter in memory, so its turns include no HTTP request. Its
  session has as many messages as the everhold session has entries.
- **Accept in process**: each of many callers has a session, and sends the next message when the last one was accepted.
- **Telegram**: a stateful fake of the Bot API in the measuring process, and `everhold up` in its own. The bare bot is
  the vendor's client in a loop.
- **Quick and growing replies**: the gateway and a bot with the vendor's client, each in its own process, with as many
  calls. A quick reply is complete at once; a growing one is streamed for two seconds. Both make the same model request,
  with the same system prompt, tools and a history of the same length, and both run on the same event loop. The cost of
  the idle process is subtracted. Recall and reviews are off, except in one row.
- **Audit**: each turn of the store has five recalled entries, two receipts and three bookings. The audit runs in a
  process of its own. Its memory grows with the longest session, not with the store.
- **Drained**: the gateway of the turn rows, in a process of its own, with a context of 100,000 tokens.
- **Lost of**: messages that arrive while the model holds its answer. For hermes-agent, the messages in its database
  count; for everhold, the messages that a turn consumed, after a restart where there was a stop or a kill.

[What plug-ins lose](how-to/bring-your-hermes-plugin.md#what-plug-ins-lose-alone-and-here) shows what memory plug-ins of
hermes-agent lose under faults: alone, under everhold, and compared with everhold's own adapters. `python -m
bench.losses` writes that table.
"""


def main() -> None:
    if sys.argv[1:2] == ["recall"]:  # shares, not times: it has a command line of its own
        named = sys.argv[2:] and not sys.argv[2].startswith("-")
        measure_recall(sys.argv[2:] if named else ["used", *sys.argv[2:]])
        return
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"some of {', '.join(WORKS)}; all unless given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    if unknown := set(given.works) - set(WORKS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    freeze_garbage_collector()
    before = conditions()
    rows: list[Row] = []
    for name in given.works or WORKS:
        started = time.monotonic()
        rows += WORKS[name](given.rounds)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    after = conditions()
    print(before, render(rows), after, sep="\n\n")
    if given.write:
        PAGE.write_text(page(rows, before, after))
    sys.exit(1 if any(row.holds is False for row in rows) else 0)


if __name__ == "__main__":
    main()
