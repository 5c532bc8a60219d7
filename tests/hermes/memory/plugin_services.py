"""What hermes-agent's own plug-ins talk to, on loopback, and their own configuration for it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everhold.testing.services.base import LoopbackService, ServiceReply, ServiceRequest
from everhold.testing.services.hindsight import HindsightService
from everhold.testing.services.honcho import HonchoService
from everhold.testing.services.mem0 import Mem0Service

BRV = """\
#!{python}
import pathlib, sys
tree = pathlib.Path.cwd() / ".brv" / "context-tree.md"
match sys.argv[1:]:
    case ["curate", "--", text]:
        tree.parent.mkdir(exist_ok=True)
        with tree.open("a") as file:
            file.write(text + "\\n")
    case ["query", "--", _] | ["status"]:
        print("Knowledge:", tree.read_text() if tree.exists() else "none")
    case _:
        print("3.14.0")
"""
"""ByteRover's program: it keeps a tree of knowledge below its working directory."""


class OlderSupermemoryService(LoopbackService):
    """As much of Supermemory's older API as the plug-in's pinned client uses."""

    routes = (
        ("POST", "/v3/documents", "add"),
        ("POST", "/v4/conversations", "ingest"),
        ("POST", "/v4/search", "search"),
        ("POST", "/v4/profile", "profile"),
    )

    def __init__(self, *, key: str | None = None) -> None:
        super().__init__(key=key)
        self.texts: list[tuple[str, str]] = []

    def add(self, call: ServiceRequest) -> ServiceReply:
        tags = call.json.get("containerTags") or [call.json.get("containerTag")]
        self.texts += [(tag, call.json["content"]) for tag in tags]
        return ServiceReply({"id": f"doc{len(self.texts)}", "status": "done"}, 200)

    def ingest(self, call: ServiceRequest) -> ServiceReply:
        self.texts += [(tag, json.dumps(call.json["messages"])) for tag in call.json["containerTags"]]
        return ServiceReply({"id": "c"}, 200)

    def search(self, call: ServiceRequest) -> dict[str, Any]:
        results = [
            {"id": str(number), "memory": text, "similarity": 0.9, "metadata": None, "updatedAt": "2026-01-01"}
            for number, (tag, text) in enumerate(self.texts)
            if tag == call.json.get("containerTag")
        ]
        return {"results": results, "timing": 1, "total": len(results)}

    def profile(self, call: ServiceRequest) -> dict[str, Any]:
        return {"profile": {"static": [], "dynamic": []}, "searchResults": self.search(call)}


class RetainDbService(LoopbackService):
    """As much of RetainDB as the plug-in uses. It keeps memories by project and user."""

    routes = (
        ("POST", "/v1/memory/ingest/session", "ingest"),
        ("POST", "/v1/memory", "add"),
        ("POST", "/v1/memory/search", "search"),
        ("POST", "/v1/context/query", "search"),
        ("GET", "/v1/memory/profile/{user}", "profile"),
        ("POST", "/v1/memory/profile/{user}/ask", "ask"),
        ("GET", "/v1/memory/agent/{agent}/model", "model"),
        ("GET", "/v1/files", "files"),
    )

    def __init__(self, *, key: str | None = None) -> None:
        super().__init__(key=key)
        self.texts: list[tuple[str, str, str]] = []

    def ingest(self, call: ServiceRequest) -> dict[str, Any]:
        for message in call.json["messages"]:
            self._add(call, message["content"])
        return {"ok": True}

    def add(self, call: ServiceRequest) -> dict[str, Any]:
        self._add(call, call.json["content"])
        return {"id": str(len(self.texts))}

    def search(self, call: ServiceRequest) -> dict[str, Any]:
        return {"results": self._list(call.json["project"], call.json["user_id"])}

    def profile(self, call: ServiceRequest, user: str) -> dict[str, Any]:
        return {"memories": self._list(call.query["project"], user)}

    def ask(self, call: ServiceRequest, user: str) -> dict[str, Any]:
        return {"answer": "\n".join(it["content"] for it in self._list(call.json["project"], user))}

    def model(self, call: ServiceRequest, agent: str) -> dict[str, Any]:
        return {"memory_count": 0}

    def files(self, call: ServiceRequest) -> dict[str, Any]:
        return {"files": []}

    def _add(self, call: ServiceRequest, text: str) -> None:
        self.texts.append((call.json["project"], call.json["user_id"], text))

    def _list(self, project: str, user: str) -> list[dict[str, Any]]:
        return [{"id": str(n), "content": it[2]} for n, it in enumerate(self.texts) if it[:2] == (project, user)]


class OpenVikingService(LoopbackService):
    """As much of OpenViking as the plug-in uses. It keeps memories by the user whom the headers name."""

    routes = (
        ("GET", "/health", "health"),
        ("GET", "/api/v1/fs/{view}", "browse"),
        ("GET", "/api/v1/content/{view}", "read"),
        ("POST", "/api/v1/content/write", "write"),
        ("POST", "/api/v1/search/{mode}", "search"),
        ("GET", "/api/v1/sessions/{session}", "session"),
        ("POST", "/api/v1/sessions/{session}/messages/batch", "add"),
        ("POST", "/api/v1/sessions/{session}/commit", "commit"),
    )

    def __init__(self, *, key: str | None = None) -> None:
        super().__init__(key=key)
        self.texts: list[tuple[str, str, str]] = []
        """(user, address, text)."""

    def health(self, call: ServiceRequest) -> dict[str, Any]:
        return {"status": "ok", "healthy": True}

    def session(self, call: ServiceRequest, session: str) -> dict[str, Any]:
        return {"status": "ok", "result": {"session_id": session, "pending_tokens": 0}}

    def commit(self, call: ServiceRequest, session: str) -> dict[str, Any]:
        return {"status": "ok", "result": {}}

    def add(self, call: ServiceRequest, session: str) -> dict[str, Any]:
        for message in call.json["messages"]:
            self._add(call, "".join(part.get("text", "") for part in message["parts"]))
        return {"status": "ok", "result": {}}

    def write(self, call: ServiceRequest) -> dict[str, Any]:
        self._add(call, call.json["content"], call.json["uri"])
        return {"status": "ok", "result": {"uri": call.json["uri"]}}

    def search(self, call: ServiceRequest, mode: str) -> dict[str, Any]:
        found = [{**it, "score": 0.9, "level": 1} for it in self._list(call)]
        return {"status": "ok", "result": {"memories": found, "resources": [], "total": len(found)}}

    def browse(self, call: ServiceRequest, view: str) -> dict[str, Any]:
        return {"status": "ok", "result": [{**it, "isDir": False} for it in self._list(call)]}

    def read(self, call: ServiceRequest, view: str) -> dict[str, Any]:
        texts = [it["abstract"] for it in self._list(call) if it["uri"] == call.query["uri"]]
        return {"status": "ok", "result": "\n".join(texts)}

    def _add(self, call: ServiceRequest, text: str, uri: str = "") -> None:
        self.texts.append((_get_viking_user(call), uri or f"viking://user/memories/{len(self.texts)}.md", text))

    def _list(self, call: ServiceRequest) -> list[dict[str, Any]]:
        user = _get_viking_user(call)
        return [{"uri": uri, "abstract": text} for theirs, uri, text in self.texts if theirs == user]


def _get_viking_user(call: ServiceRequest) -> str:
    headers = {name.lower(): value for name, value in call.headers.items()}
    return headers.get("x-openviking-user", "default")


SERVICES: Mapping[str, type[LoopbackService]] = {
    "honcho": HonchoService,
    "hindsight": HindsightService,
    "mem0": Mem0Service,
    "supermemory": OlderSupermemoryService,
    "retaindb": RetainDbService,
    "openviking": OpenVikingService,
}
KEYLESS = ("honcho", "openviking")
"""Plug-ins that send no key to a service on loopback."""


@asynccontextmanager
async def serve_plugin(home: Path, name: str, **given: Any) -> AsyncIterator[dict[str, Any]]:
    """Run what a plug-in talks to, configure the plug-in in a home of hermes-agent, and yield more settings for it."""
    if name == "byterover":
        folder = home.parent / "bin"
        yield {"environ": {"PATH": install_brv(folder)}, "read_paths": (str(folder), sys.prefix)}
        return
    async with SERVICES[name](**({} if name in KEYLESS else {"key": "k"})) as service:
        yield configure_plugin(home, name, service.url, **given)


def configure_plugin(home: Path, name: str, url: str, **given: Any) -> dict[str, Any]:
    """Write the plug-in's own configuration, as in a home of hermes-agent. Return more settings for everhold."""
    known: dict[str, tuple[str, dict[str, Any]]] = {
        "honcho": ("honcho.json", {"apiKey": "k", "baseUrl": url, "enabled": True, "workspace": "w"}),
        "hindsight": ("hindsight/config.json", {"mode": "cloud", "api_url": url, "api_key": "k"}),
        "mem0": ("mem0.json", {"mode": "platform", "host": url, "api_key": "k"}),
        "supermemory": ("supermemory.json", {"base_url": url}),
    }
    environ = {
        "supermemory": {"SUPERMEMORY_API_KEY": "k"},
        "retaindb": {"RETAINDB_API_KEY": "k", "RETAINDB_BASE_URL": url, "RETAINDB_PROJECT": "p"},
        "openviking": {"OPENVIKING_ENDPOINT": url},
    }
    if name in known:
        file, config = known[name]
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(json.dumps({**config, **given}))
    return {"environ": environ[name]} if name in environ else {}


def install_brv(folder: Path) -> str:
    """Install ByteRover's program, and return a PATH with it."""
    folder.mkdir(parents=True)
    program = folder / "brv"
    program.write_text(BRV.format(python=sys.executable))
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.defpath}"
