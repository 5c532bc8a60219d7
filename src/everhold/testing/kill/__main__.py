"""Kill a process many times and print the result."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from everhold.testing.kill import http_trial
from everhold.testing.kill.gates import UNREACHED, list_kill_gates
from everhold.testing.kill.gateway import KillableGateway
from everhold.testing.kill.trial import KillTrial, KillTrialResult
from everhold.testing.model_server import ModelServer


async def run_random_kills(seed: int, kills: int) -> KillTrialResult:
    async with KillTrial(seed) as trial:
        await trial.kill_at_random(kills)
        return await trial.finish_and_compare()


async def run_gate_tour(seed: int) -> KillTrialResult:
    async with KillTrial(seed) as trial:
        await trial.kill_at_gates(list_kill_gates())
        return await trial.finish_and_compare()


async def run_gateway_kills(seed: int, kills: int) -> http_trial.GatewayKillResult:
    """Kill `everhold up` between HTTP callers and a model server."""
    with tempfile.TemporaryDirectory(prefix="everhold-kill-") as directory:
        async with ModelServer(key=http_trial.MODEL_API_KEY) as model:
            gateway = KillableGateway(
                Path(directory) / "home", http_trial.make_config(model.openai), secrets=http_trial.ENV_FILE_TEXT
            )
            try:
                return await http_trial.run_kills(gateway, model, seed=seed, kills=kills)
            finally:
                await gateway.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m everhold.testing.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="number of kills at random moments")
    parser.add_argument(
        "--tour", action="store_true", help="kill once before and once after every named commit instead"
    )
    parser.add_argument(
        "--web", action="store_true", help="kill the whole program instead, with HTTP callers and a model server"
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.web:
        found = asyncio.run(run_gateway_kills(given.seed, given.kills))
        sys.stdout.write(f"{found}\n")
        sys.exit(1 if found.failures else 0)
    outcome = asyncio.run(run_gate_tour(given.seed) if given.tour else run_random_kills(given.seed, given.kills))
    lines = [str(outcome)]
    if given.tour:
        lines += [f"not reached: {step} ({why})" for step, why in UNREACHED.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(1 if outcome.failures else 0)


if __name__ == "__main__":
    main()
