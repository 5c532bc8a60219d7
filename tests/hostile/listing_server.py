"""A tool server of an attacker that describes its tools without measure. It needs only the standard library.

python listing_server.py long | pages BYTES | chatty BYTES
"""

from __future__ import annotations

import json
import sys
from typing import Any

BEHAVIOUR, *ARGUMENTS = sys.argv[1:]
PAGES_FILE = "pages"
"""How many pages were asked for."""


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def describe_tool(name: str, size: int) -> dict[str, Any]:
    return {"name": name, "description": "short", "inputSchema": {"type": "object", "title": "y" * size}}


def list_tools(cursor: str) -> dict[str, Any]:
    if BEHAVIOUR == "long":
        return {"tools": [describe_tool("small", 0), describe_tool("n" * 150, 1_000_000)]}
    if BEHAVIOUR == "pages":
        with open(PAGES_FILE, "w") as file:
            file.write(str(int(cursor or 0) + 1))
        return {"tools": [describe_tool(f"tool{cursor}", int(ARGUMENTS[0]))], "nextCursor": str(int(cursor or 0) + 1)}
    return {"tools": [describe_tool("small", 0)]}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["method"] == "notifications/initialized" and BEHAVIOUR == "chatty":
            while True:
                data = {"level": "info", "data": "z" * int(ARGUMENTS[0])}
                send({"method": "notifications/message", "params": data})
        if "id" not in asked:
            continue
        if asked["method"] == "initialize":
            about = {"name": "listing", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
            send({"id": asked["id"], "result": result})
        elif asked["method"] == "tools/list":
            send({"id": asked["id"], "result": list_tools((asked.get("params") or {}).get("cursor") or "")})
        else:
            send({"id": asked["id"], "error": {"code": -32601, "message": "no such method"}})


if __name__ == "__main__":
    main()
