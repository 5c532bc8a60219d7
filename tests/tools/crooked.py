"""A tool server with every fault that a tool server can have, one per tool. It needs only the standard library.

python crooked.py [silent | garbage | grumpy FILE]     how it starts
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TOOLS = [
    "echo",
    "big",
    "die",
    "hang",
    "refuse",
    "secret",
    "key",
    "picture",
    "files",
    "news",
    "nonsense",
    "structured",
    "token",
]

RUN_TOKEN = os.urandom(16).hex()
"""Differs in each run."""


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words: str, *, error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], "isError": error}


def call(name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    if name == "die":
        os._exit(3)
    if name == "hang":
        time.sleep(3600)
    if name == "refuse":
        return text("that is not possible", error=True)
    if name == "news":
        TOOLS.append("late")
        send({"method": "notifications/tools/list_changed"})
    if name == "picture":
        return {"content": [{"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}]}
    if name == "files":
        uri = "file:///etc/secrets/report.pdf"
        about = {"uri": uri, "mimeType": "application/pdf", "blob": str(arguments.get("blob"))}
        return {"content": [{"type": "resource", "resource": about}]}
    if name == "structured":
        return {"content": [], "structuredContent": {"answer": 42}}
    if name == "nonsense":
        sys.stdout.write("Loading model, please wait...\n")
    answers = {
        "echo": json.dumps(arguments),
        "big": "x" * int(arguments.get("size", 0)),
        "secret": f"{os.environ.get('CANARY')} {sorted(os.environ)}",
        "key": str(meta.get("everhold/key")),
        "token": RUN_TOKEN,
    }
    return text(answers.get(name, "done"))


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "crooked", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {"size": {"type": "integer"}}}
        return {"tools": [{"name": name, "description": f"Does {name}", "inputSchema": schema} for name in TOOLS]}
    if method == "tools/call":
        return call(params["name"], params.get("arguments") or {}, params.get("_meta") or {})
    return None


def main() -> None:
    how = sys.argv[1] if len(sys.argv) > 1 else ""
    sys.stderr.write(f"starting with {os.environ.get('CANARY')}\n")
    if how == "silent":
        time.sleep(3600)
    if how == "garbage":
        while True:
            sys.stdout.write("y\n")
    if how == "grumpy" and not os.path.exists(sys.argv[2]):
        sys.stderr.write("I want my file\n")
        sys.exit(7)
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        result = answer(asked["method"], asked.get("params") or {})
        if result is None:
            send({"id": asked["id"], "error": {"code": -32601, "message": f"no method {asked['method']}"}})
        else:
            send({"id": asked["id"], "result": result})


if __name__ == "__main__":
    main()
