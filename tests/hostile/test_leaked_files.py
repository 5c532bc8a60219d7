"""The attacker reads files that leaked: the store, a backup, the log, an export. None contains a way in.

`test_leaked_secrets.py` does the same with every kind of secret, command and route, and `doctor --bundle`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from everhold.api import logins
from everhold.core import pairing
from everhold.engine import gates
from everhold.models import errors
from everhold.telemetry import logs
from everhold.testing.model_server import ModelServer, ModelServerStatus
from tests.api.conftest import ADA, LOCAL, MODEL_KEY, OPERATOR
from tests.api.test_logins import LoginGateway


async def play_reader(path: Path) -> set[str]:
    """Use every kind of credential, and return which of them are in which file."""
    async with ModelServer(key=MODEL_KEY) as model:
        gateway = LoginGateway(path, model)
        await gateway.start()
        try:
            used, unused = await gateway.make_code(), await gateway.make_code()
            page = await gateway.log_in(code=used)
            pair = gateway.running.admission.pairing.request_pairing
            code = await pair("telegram", "main", "666", name="Eve", chat="666")
            assert code
            model.default = lambda _: ModelServerStatus(status=401, body={"error": f"{MODEL_KEY} is not a key"})
            async with gateway.client() as client:
                asked = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
                failed = await client.post("/v1/chat/completions", json=asked, headers={"x-everhold-session": "x"})
                assert failed.status_code >= 400
                await client.get("/api/sessions", headers={"authorization": f"Bearer {ADA}x"})
                exported = await client.get("/api/memory/export", params={"person": "ada"})
                assert exported.status_code == 200
                assert (await client.post("/api/backups", json={})).status_code == 200
            shown = gateway.log.getvalue()
        finally:
            await gateway.stop()
    secrets = {
        "a login code": [used, unused],
        "a login": [*page.cookies.values(), page.key.partition(".")[2]],
        "a token": [LOCAL, OPERATOR, ADA],
        "the model's key": [MODEL_KEY],
        "a pairing code": [code, code.replace("-", "")],
    }
    files = [it for it in gateway.home.path.rglob("*") if it.is_file() and it.name != ".env"]
    assert {it.suffix for it in files} >= {".db", ".log"}
    assert any(it.parent.name == "backups" for it in files)
    texts = {"the log": shown.encode(), "an export": exported.content, **{it.name: it.read_bytes() for it in files}}
    return {
        f"{what} in {'a file' if where not in ('the log', 'an export') else where}"
        for what, values in secrets.items()
        for where, text in texts.items()
        if any(value.encode() in text for value in values)
    }


async def test_no_leaked_file_contains_a_way_in(tmp_path: Path) -> None:
    assert await play_reader(tmp_path) == set()


def store_logins_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(logins, "_hash", lambda text: text)


def store_codes_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pairing, "digest_code", lambda code, *, whose: code)


def quote_servers(patch: pytest.MonkeyPatch) -> None:
    """The adapter hides its own key, and the gate for calls every secret."""
    make = gates.Gates.__init__
    patch.setattr(errors.ModelEndpoint, "redact_text", lambda self, text: text)
    patch.setattr(gates.Gates, "__init__", lambda self, **given: make(self, **{**given, "redact": str}))


def log_without_redaction(patch: pytest.MonkeyPatch) -> None:
    quote_servers(patch)
    patch.setattr(logs.SecretRedaction, "scrub_text", lambda self, text: text)


PLANTED: Final[dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]]] = {
    "logins are stored as they are": (store_logins_as_they_are, {"a login in a file", "a login code in a file"}),
    "pairing codes are stored as they are": (store_codes_as_they_are, {"a pairing code in a file"}),
    "answers of model servers are stored as they are": (quote_servers, {"the model's key in a file"}),
    "log lines are written as they are": (log_without_redaction, {"the model's key in the log"}),
}


@pytest.mark.parametrize("bug", PLANTED)
async def test_a_planted_vulnerability_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    plant, gains = PLANTED[bug]
    plant(monkeypatch)
    assert gains <= await play_reader(tmp_path)
