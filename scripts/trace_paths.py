"""Count the modules and functions that one Telegram message and one memory write pass through.

    python scripts/trace_paths.py                     # this tree
    python scripts/trace_paths.py --source DIR/src    # another tree, with the same scenario
    python scripts/trace_paths.py --list              # name every module and function

The script starts a real gateway as a child process, with a Telegram server, a model server and a Honcho service on
loopback. The child records which functions of everhold it enters (`sys.setprofile`). The third message is measured, so
that nothing is built for the first time. A call belongs to the path of the consumer whose claim is worked on, or of the
task at the bottom of its stack. Commits count for both paths; servers, file watching and the dispatch loop count for
none. The results are in docs/ARCHITECTURE.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

EVENT_LOOP_FILES = ("asyncio/runners.py", "asyncio/base_events.py", "uvloop/__init__.py")
"""The command that started the event loop is below these in every stack."""
BOT_TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw-canary"
MODEL_KEY = "a-key-for-tracing-0123"
MEASURED_MEMORY = "memory:honcho"
OTHER_ROOTS = ("api", "web", "remote", "cli", "config", "app", "engine/supervisor", "flow/supervise")
"""Modules whose own tasks belong to no path: servers, file watching, the dispatch loop."""


class CallRecorder:
    """Record, while switched on, which functions of everhold are entered, and for whom.

    A record is the consumer of the claim that is worked on ("" outside of workers), the module at the bottom of the
    stack, and the module and name of the function.
    """

    def __init__(self, source: Path) -> None:
        self.prefix = str(source / "everhold") + os.sep
        self.calls: set[tuple[str, str, str, str]] = set()
        self.is_recording = False

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        if not self.is_recording or event != "call" or not frame.f_code.co_filename.startswith(self.prefix):
            return
        if frame.f_code.co_name.startswith("<"):
            return
        consumer, root = "", ""
        outer: FrameType | None = frame
        while outer is not None and not outer.f_code.co_filename.endswith(EVENT_LOOP_FILES):
            if outer.f_code.co_filename.startswith(self.prefix):
                root = self._get_module(outer)
                if root.startswith(("engine/supervisor", "flow/supervise")) and "claim" in outer.f_code.co_varnames:
                    claim = outer.f_locals.get("claim")
                    consumer = getattr(claim, "consumer", "") or getattr(claim, "reader", "")
            outer = outer.f_back
        self.calls.add((consumer, root, self._get_module(frame), frame.f_code.co_qualname))

    def _get_module(self, frame: FrameType) -> str:
        return frame.f_code.co_filename.removeprefix(self.prefix).removesuffix(".py")


def run_child(source: Path, home: str) -> None:
    """Run `everhold up` and obey "start" and "stop FILE" on standard input."""
    recorder = CallRecorder(source)

    def obey() -> None:
        for line in sys.stdin:
            command, _, argument = line.strip().partition(" ")
            if command == "start":
                recorder.calls, recorder.is_recording = set(), True
            else:
                recorder.is_recording = False
                found = Path(argument + ".new")
                found.write_text(json.dumps(sorted(recorder.calls)))
                found.rename(argument)

    threading.Thread(target=obey, daemon=True).start()
    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)
    from everhold.cli import main

    sys.argv = ["everhold", "--home", home, "up"]
    sys.exit(main())


async def wait_for(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # the fake servers offer no event for it
            await asyncio.sleep(0.05)


async def record_calls(source: Path) -> list[tuple[str, str, str, str]]:
    """Run the scenario and return the recorded calls of the third message."""
    from everhold.testing.model_server import ModelServer
    from everhold.testing.platforms.telegram import TelegramServer
    from everhold.testing.services.honcho import HonchoService

    async with TelegramServer() as telegram, ModelServer(key=MODEL_KEY) as model, HonchoService() as honcho:
        telegram.add_bot(BOT_TOKEN)
        with tempfile.TemporaryDirectory() as directory:
            home = Path(directory) / "home"
            home.mkdir(mode=0o700)
            config: dict[str, Any] = {
                "models": {
                    "m": {
                        "provider": "openai",
                        "base_url": model.openai,
                        "name": "fake",
                        "api_key_env": "MODEL_KEY",
                        "context_tokens": 100_000,
                    }
                },
                "defaults": {"memories": ["honcho"], "tools": []},
                "platforms": {
                    "telegram": {
                        "main": {
                            "token_env": "BOT",
                            "base_url": telegram.url,
                            "poll_seconds": 30,
                            "access": {"direct": ["ada"]},
                        }
                    }
                },
                "people": [{"name": "ada", "identities": ["telegram:1001"]}],
                "memories": {"honcho": {"base_url": honcho.url}},
                "http": {"port": 0},
                "backup": {"every_hours": 0},
            }
            (home / "config.yaml").write_text(json.dumps(config))
            env = home / ".env"
            env.touch(mode=0o600)
            env.write_text(f"MODEL_KEY={MODEL_KEY}\nBOT={BOT_TOKEN}\n")
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, "--child", str(home), "--source", str(source)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(source), "EVERHOLD_LOCKS": directory},
            )
            assert child.stdin is not None
            try:
                for number in (1, 2):
                    await telegram.write_message(f"message number {number}")
                    await wait_for(lambda: len(telegram.list_bot_texts(1001)) >= number)  # noqa: B023
                await asyncio.sleep(2.0)  # memories and the supervisor come to rest
                child.stdin.write(b"start\n")
                await telegram.write_message("message number 3")
                await wait_for(lambda: len(telegram.list_bot_texts(1001)) >= 3)
                await asyncio.sleep(2.0)  # the receipts are committed
                result = Path(directory) / "calls.json"
                child.stdin.write(f"stop {result}\n".encode())
                await wait_for(result.exists)
                return [
                    (consumer, root, module, name) for consumer, root, module, name in json.loads(result.read_text())
                ]
            finally:
                if child.returncode is None:
                    child.kill()
                await child.wait()


def is_store_work(root: str) -> bool:
    """Whether the store's writer runs a commit. It serves every path, so its functions count for each."""
    return root.startswith("stores/")


def is_memory_write(consumer: str, root: str) -> bool:
    return consumer == MEASURED_MEMORY or is_store_work(root) or root.startswith("memories/honcho")


def is_message(consumer: str, root: str) -> bool:
    if consumer:
        return not consumer.startswith("memory:")
    return not root.startswith((*OTHER_ROOTS, "memories/"))


def write_line(text: str) -> None:
    sys.stdout.write(text + "\n")


def write_path(name: str, calls: set[tuple[str, str]], *, all_names: bool) -> None:
    modules = sorted({module for module, _ in calls})
    write_line(f"{name}: {len(modules)} modules, {len(calls)} functions")
    if all_names:
        for module in modules:
            write_line(f"  {module}.py: {', '.join(sorted(function for where, function in calls if where == module))}")


async def measure(source: Path, *, all_names: bool) -> None:
    calls = await record_calls(source)
    if all_names:
        write_line("tasks: " + ", ".join(sorted({consumer or root for consumer, root, _, _ in calls})))
    for path, belongs in (("message", is_message), ("memory write", is_memory_write)):
        found = {(module, name) for consumer, root, module, name in calls if belongs(consumer, root)}
        write_path(path, found, all_names=all_names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parent.parent / "src")
    parser.add_argument("--list", action="store_true", help="name every module and function")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    source = given.source.resolve()
    if given.child:
        run_child(source, given.child)
    else:
        asyncio.run(measure(source, all_names=given.list))


if __name__ == "__main__":
    main()
