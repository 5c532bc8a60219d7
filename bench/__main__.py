"""Measure everything, print one table, and with --write keep it in docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from bench.accept import accept_rows
from bench.bursts import burst_rows
from bench.conditions import ROOT, conditions
from bench.due import due_rows
from bench.fold import fold_rows
from bench.gateway import crowd_rows, gateway_rows, start_rows
from bench.hosts import host_rows
from bench.many import many_rows
from bench.matrix import matrix_rows
from bench.memories import memory_rows
from bench.moving import moving_rows
from bench.peers import peer_rows
from bench.recalling import recalling_rows
from bench.summaries import summary_rows
from bench.table import Row, render
from bench.telegram import telegram_rows
from bench.turn import flat_rows, turn_rows
from bench.view import view_rows
from everhold.cli.commands.up import freeze_garbage_collector

PAGE = ROOT / "docs" / "benchmarks.md"

WORKS: dict[str, Callable[[int], list[Row]]] = {
    "accept": accept_rows,
    "turn": turn_rows,
    "flat": flat_rows,
    "recalling": recalling_rows,
    "view": view_rows,
    "due": due_rows,
    "peers": peer_rows,
    "gateway": gateway_rows,
    "start": start_rows,
    "many": many_rows,
    "crowd": crowd_rows,
    "fold": fold_rows,
    "summaries": summary_rows,
    "memories": memory_rows,
    "hosts": host_rows,
    "moving": moving_rows,
    "matrix": matrix_rows,
    "telegram": telegram_rows,
    "bursts": burst_rows,
}


def page(rows: list[Row], before: str, after: str) -> str:
    return f"""# Benchmarks

Written by `make bench ARGS=--write`: the numbers of the last run, whatever they were. Every comparison is made in one
run, in interleaved rounds, and the ratio is the median of the rounds' own ratios, so a shared machine disturbs both
sides alike. Absolute numbers are this machine's alone.

- before: {before}
- after: {after}

{render(rows)}

**Durable accept**: from the door to its answer, `synchronous=FULL`, beside a loop that has its rows ready and does
nothing but write them, under the same group commit. **Turn**: an instant model and a keyed platform in the same
process, so what is left is everhold (accept, begin, end, delivery with its receipt), CPU of all threads, Python's
collector set as `everhold up` sets it. **Cold**:
the store was just opened and nothing is cached. **Append a turn**: two durable commits, what was heard and what was
answered; LangGraph runs a graph of one node. **Load**: everhold reads its window (a fold every 200 turns); the peers
read all they have, which is what they do unless told otherwise. **Turn over HTTP**: `everhold up` in a process of its
own, the model server in another. A question and its answer: `POST /v1/chat/completions`; posted and watched: `POST
/api/messages`, then the reply on `/api/events`. CPU of the whole gateway from
/proc, with folds, reviews, index and log, but without recall, for which hermes-agent has nothing; what recall adds is
in rows of its own. How fast this machine was just then is a row, too: it varies by half within an hour.
hermes-agent runs its real gateway class with an adapter in memory, so its
turn has no HTTP on the way in, and as many messages behind it as the everhold session has entries. **Accept, a crowd**:
everybody has a connection and a session, and sends the next message when the last one was accepted. **Telegram**: a
stateful fake of the Bot API in the measuring process, `everhold up` in its own; a reply is typed, drafted and edited
as people see it. The bare bot is the vendor's client with a loop around it. **Lost of**: messages that pile up behind
a held model; of hermes-agent what its database has of them in the end, of everhold what a turn took up, after a
restart where there was a stop or a kill.

What memory plug-ins of hermes-agent lose under faults, alone, under everhold, and beside everhold's own adapters, is a
table of its own: [what plug-ins lose](how-to/bring-your-hermes-plugin.md#what-plug-ins-lose-alone-and-here), by
`python -m bench.losses`.
"""


def main() -> None:
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
