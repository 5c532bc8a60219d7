"""A round of openai-agents' SQLiteSession for every line on stdin. Runs in the peers' venv, without everhold."""

import asyncio
import json
import sys
import time

from agents import SQLiteSession

directory, size, message, reply = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


def user() -> dict[str, str]:
    return {"role": "user", "content": message}


def assistant() -> dict[str, str]:
    return {"role": "assistant", "content": reply}


async def main() -> None:
    session = SQLiteSession("s1", f"{directory}/agents-{size}.db")
    await session.add_items([item for _ in range(size // 2) for item in (user(), assistant())])
    print("[]", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        for _ in range(5):
            await session.add_items([user()])
            await session.add_items([assistant()])
        append = (time.perf_counter() - started) / 5
        started = time.perf_counter()
        await session.get_items()
        print(json.dumps([append * 1e3, (time.perf_counter() - started) * 1e3]), flush=True)
    session.close()


asyncio.run(main())
