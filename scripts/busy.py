"""Keep the processor busy while a command runs: `python scripts/busy.py --processes 10 -- python -m pytest tests/api`.

A test that measures the machine instead of the product fails beside ten busy processes. `make busy` runs the whole
suite this way. Each busy process ends with this script, also when the script is killed, and after --seconds at the
latest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import time

CHECK_ROUNDS = 200_000
"""Additions between two looks at the clock and at the parent process."""


def burn_processor(parent: int, seconds: float) -> None:
    """Compute until the time is over or the process that started this one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and stops this process
    end = time.monotonic() + seconds
    while time.monotonic() < end and os.getppid() == parent:
        total = 0
        for number in range(CHECK_ROUNDS):
            total += number


def parse_arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10, help="how many busy processes to start (10)")
    parser.add_argument("--seconds", type=float, default=7200.0, help="how long they run at most (7200)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command to run beside them; without one: wait")
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    arguments = parse_arguments(given)
    command = [word for number, word in enumerate(arguments.command) if (number, word) != (0, "--")]
    start = multiprocessing.get_context("spawn").Process
    burning = [
        start(target=burn_processor, args=(os.getpid(), arguments.seconds), daemon=True)
        for _ in range(arguments.processes)
    ]
    running: subprocess.Popen[bytes] | None = None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for process in burning:
            process.start()
        if command:
            running = subprocess.Popen(command)
            return running.wait()
        for process in burning:
            process.join()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if running is not None and running.poll() is None:
            running.terminate()
        for process in burning:
            if process.is_alive():
                process.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
