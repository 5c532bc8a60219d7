"""Kill a process, many times, and say what came of it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from everhold.testing.kill import web
from everhold.testing.kill.gates import UNREACHED, gates
from everhold.testing.kill.gateway import Gateway
from everhold.testing.kill.trial import Outcome, Trial
from everhold.testing.modelserver import ModelServer


async def storm(seed: int, kills: int) -> Outcome:
    async with Trial(seed) as trial:
        await trial.storm(kills)
        return await trial.finish()


async def tour(seed: int) -> Outcome:
    async with Trial(seed) as trial:
        await trial.tour(gates())
        return await trial.finish()


async def between(seed: int, kills: int) -> web.Outcome:
    """Callers on one side, a model on the other."""
    with tempfile.TemporaryDirectory(prefix="everhold-kill-") as directory:
        async with ModelServer(key=web.KEY) as model:
            gateway = Gateway(Path(directory) / "home", web.configuration(model.openai), secrets=web.SECRETS)
            try:
                return await web.storm(gateway, model, seed=seed, kills=kills)
            finally:
                await gateway.end()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m everhold.testing.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="how often, at random moments")
    parser.add_argument("--tour", action="store_true", help="instead: once before and once after every named commit")
    parser.add_argument("--web", action="store_true", help="instead: the whole program, with callers and a model")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.web:
        found = asyncio.run(between(given.seed, given.kills))
        sys.stdout.write(f"{found}\n")
        sys.exit(1 if found.failures else 0)
    outcome = asyncio.run(tour(given.seed) if given.tour else storm(given.seed, given.kills))
    lines = [str(outcome)]
    if given.tour:
        lines += [f"not reached: {step} ({why})" for step, why in UNREACHED.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(1 if outcome.failures else 0)


if __name__ == "__main__":
    main()
