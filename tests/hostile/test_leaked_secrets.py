"""The attacker reads what the gateway writes: its files, its log, the output of its commands and its API.

Every service answers with an error that repeats what it was sent, so secrets come back in error texts.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import socket
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.api.reference import build_route_table
from tests.cli.command_home import CommandHome, make_plugin
from tests.waiting import block_until

SECRETS = {
    "MODEL_KEY": "canary-model-6c0f1a9be2",
    "CLAUDE_KEY": "canary-claude-91d2ab44c0",
    "TELEGRAM_TOKEN": "7001:canary-telegram-AAH31c0d9",
    "DISCORD_TOKEN": "canary.discord.5518ab0c77",
    "SLACK_BOT": "xoxb-canary-slack-bot-0a1b2c",
    "SLACK_APP": "xapp-canary-slack-app-9f8e7d",
    "MATRIX_TOKEN": "canary_matrix_44b1c2d3e4",
    "HONCHO_KEY": "canary-honcho-0d9c8b7a6f",
    "HINDSIGHT_KEY": "canary-hindsight-1e2d3c4b",
    "MEM0_KEY": "canary-mem0-a9b8c7d6e5",
    "SUPERMEMORY_KEY": "canary-supermemory-5f6e7d",
    "MCP_TOKEN": "canary-mcp-token-3c2b1a0f9e",
    "MCP_SECRET": "canary-mcp-secret-8d7c6b5a4f",
    "PLUGIN_SECRET": "canary-plugin-2a3b4c5d6e",
    "HOOK_SECRET": "canary-hook-7e6d5c4b3a2f1e0d",
    "EVERHOLD_TOKEN": "canary-operator-0123456789abcdef0123456789abcdef",
}
SERVER = """
import json, os, sys
secret = os.environ["MCP_SECRET"]
print("my secret is", secret, file=sys.stderr, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        about = {"name": secret, "version": secret}
        answer = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    elif asked["method"] == "tools/list":
        schema = {"type": "object", "properties": {"a": {"type": "string", "default": secret}}}
        answer = {"tools": [{"name": "leak", "description": "It is " + secret, "inputSchema": schema}]}
    else:
        answer = {"content": [{"type": "text", "text": secret}], "isError": True}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""
PLUGIN = """
import os, sys
print("plug-in with", os.environ["PLUGIN_SECRET"], file=sys.stderr, flush=True)
raise RuntimeError("failed with " + os.environ["PLUGIN_SECRET"])
"""
COMMANDS = (
    ("status",),
    ("status", "--json"),
    ("doctor",),
    ("doctor", "--json"),
    ("config", "show"),
    ("config", "check"),
    ("config", "show", "--json"),
    ("agents",),
    ("tools",),
    ("tools", "--json"),
    ("logs",),
    ("sessions",),
    ("people",),
    ("pairing",),
    ("dead-letters",),
    ("audit",),
    ("memory", "status"),
    ("memory", "status", "--json"),
    ("service", "print"),
    ("service", "print", "--for", "systemd-system"),
    ("backup", "--json"),
    ("skills", "list"),
    ("schedules", "list"),
    ("hosts",),
    ("hooks", "list", "--json"),
    ("hooks", "test", "ci", "--data", "/dev/null", "--send", "--json"),
    ("logins", "list"),
)


class EchoHandler(http.server.BaseHTTPRequestHandler):
    """Answers every request with an error that contains the whole request."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode("utf-8", "replace")
        text = f"denied: {self.requestline} {dict(self.headers)} {body}"
        answer = json.dumps(
            {"error": {"message": text, "type": "denied"}, "detail": text, "description": text}
        ).encode()
        self.send_response(401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer  # the library's names

    def log_message(self, format: str, *args: Any) -> None:
        self.server.seen.append(self.requestline + str(dict(self.headers)))  # type: ignore[attr-defined]


@pytest.fixture
def echo() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), EchoHandler)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def build_config(url: str, folder: Path) -> dict[str, Any]:
    (folder / "server.py").write_text(SERVER)
    (folder / "leaky").mkdir()
    (folder / "leaky" / "__init__.py").write_text(PLUGIN)
    memories = {
        name: {"provider": name, "base_url": url, "api_key_env": variable}
        for name, variable in (
            ("honcho", "HONCHO_KEY"),
            ("hindsight", "HINDSIGHT_KEY"),
            ("mem0", "MEM0_KEY"),
            ("supermemory", "SUPERMEMORY_KEY"),
        )
    }
    leaky = {
        "provider": "hermes-plugin",
        "path": str(folder / "leaky"),
        "environ": {"PLUGIN_SECRET_env": "PLUGIN_SECRET"},
    }
    return {
        "models": {
            "m": {
                "provider": "openai",
                "name": "m",
                "base_url": url,
                "api_key_env": "MODEL_KEY",
                "context_tokens": 9000,
            },
            "c": {
                "provider": "anthropic",
                "name": "c",
                "base_url": url,
                "api_key_env": "CLAUDE_KEY",
                "context_tokens": 9000,
            },
        },
        "memories": {**memories, "leaky": leaky},
        "mcp": {
            "leak": {"command": [sys.executable, str(folder / "server.py")], "env": ["MCP_SECRET"]},
            "web": {"url": f"{url}/mcp", "token_env": "MCP_TOKEN"},
        },
        "platforms": {
            "telegram": {"main": {"token_env": "TELEGRAM_TOKEN", "base_url": url}},
            "discord": {"main": {"token_env": "DISCORD_TOKEN", "base_url": url}},
            "slack": {"main": {"bot_token_env": "SLACK_BOT", "app_token_env": "SLACK_APP", "base_url": f"{url}/"}},
            "matrix": {"main": {"token_env": "MATRIX_TOKEN", "homeserver": url, "user": "@bot:localhost"}},
        },
        "http": {"tokens": [{"name": "me", "token_env": "EVERHOLD_TOKEN", "role": "operator"}]},
        "hooks": {"ci": {"secret_env": "HOOK_SECRET", "scheme": "secret"}},
        "defaults": {"model": "m", "fallback": ["c"], "memories": [*memories, "leaky"]},
        "agents": {"main": {"tools": ["mcp:leak", "mcp:web"]}},
        "policy": {"rules": [{"tool": "*", "do": "allow"}], "after_foreign": "allow"},
    }


def call_api(home: Path, path: str) -> bytes:
    """Call the API as an operator."""
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(60)
    connection.sock.connect(str(home / "api.sock"))
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read()


def find_secrets(data: bytes) -> list[str]:
    return [name for name, secret in SECRETS.items() if secret.encode() in data]


def read_bundle(path: Path) -> bytes:
    with tarfile.open(path) as tar:
        return b"\n".join(file.read() for member in tar if (file := tar.extractfile(member)) is not None)


def test_no_secret_of_the_configuration_is_written_or_shown(
    tmp_path: Path, echo: http.server.ThreadingHTTPServer
) -> None:
    url = f"http://127.0.0.1:{echo.server_address[1]}"
    home = CommandHome(tmp_path / "home", make_plugin(tmp_path / "plugin"))
    (home.path / "config.yaml").write_text(json.dumps(build_config(url, tmp_path)))
    (home.path / ".env").write_text("".join(f"{name}={secret}\n" for name, secret in SECRETS.items()))
    (home.path / ".env").chmod(0o600)
    shown: dict[str, bytes] = {}
    try:
        gateway = home.start_gateway()
        sent = home.run_in_process("send", "hello", "--json", "--timeout", "1")
        shown["send"] = (sent.out + sent.err).encode()
        seen: list[str] = echo.seen  # type: ignore[attr-defined]
        used = ("MODEL_KEY", "TELEGRAM_TOKEN", "SLACK_BOT", "MCP_TOKEN", "MATRIX_TOKEN")
        block_until(lambda: all(any(SECRETS[name] in text for text in seen) for name in used))
        for words in COMMANDS:
            done = home.run_in_process(*words)
            shown[" ".join(words)] = (done.out + done.err).encode()
        home.run_in_process("doctor", "--bundle", str(tmp_path / "bundle.tar.gz"))
        shown["the bundle of doctor"] = read_bundle(tmp_path / "bundle.tar.gz")
        for route in build_route_table():
            if route.method == "GET" and "{" not in route.path and route.path != "/api/events":
                shown[f"GET {route.path}"] = call_api(home.path, route.path)
        gateway.process.terminate()
        gateway.process.wait()
        shown["standard error"] = "\n".join(gateway.log).encode()
    finally:
        home.close()
    assert find_secrets(SECRETS["MODEL_KEY"].encode()) == ["MODEL_KEY"], "the search finds something"
    leaks = {what: found for what, data in shown.items() if (found := find_secrets(data))}
    files = [path for path in home.path.rglob("*") if path.is_file() and path.name != ".env"]
    leaks |= {str(path.relative_to(home.path)): found for path in files if (found := find_secrets(path.read_bytes()))}
    assert leaks == {}
    assert len(shown) > 55
    assert {"GET /api/inbox", "GET /api/hooks", "GET /metrics"} <= set(shown)
    assert [what for what in shown if shown[what].startswith(b"usage: everhold")] == []
    assert any(path.name.startswith("everhold") and path.suffix == ".db" for path in files)
