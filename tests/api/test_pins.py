"""Pins over HTTP: who may pin what, what the model then reads, and what an erasure leaves of it."""

from __future__ import annotations

from typing import Any

from everhold.core.context import PINS_HEADING
from tests.waiting import wait_until

from .conftest import ADA, BOB, ApiGateway

TOLD = "Nobody but Hal gets the door code."


async def tell(gateway: ApiGateway, token: str, text: str, *, said: int = 1) -> tuple[str, int]:
    """Return the session and the number of the message."""
    async with gateway.client(token) as client:
        session = (await client.post("/api/messages", json={"chat": "home", "text": text})).json()["session"]
    log = await gateway.wait_until_idle(session, said=said)
    return session, next(entry["seq"] for entry in log if (entry["body"] or {}).get("text") == text)


async def change(gateway: ApiGateway, token: str, session: str, what: str, **body: Any) -> tuple[int, dict[str, Any]]:
    async with gateway.client(token) as client:
        answer = await client.post(f"/api/sessions/{session}/{what}", json=body)
        return answer.status_code, answer.json()


async def list_pinned(gateway: ApiGateway, token: str, session: str) -> list[int]:
    async with gateway.client(token) as client:
        return [pin["seq"] for pin in (await client.get(f"/api/sessions/{session}/pins")).json()["pins"]]


async def test_a_pin_is_read_by_the_model_after_a_compression_until_it_is_removed(gateway: ApiGateway) -> None:
    session, seq = await tell(gateway, ADA, TOLD)
    status, done = await change(gateway, ADA, session, "pin", seq=seq)
    assert (status, done["done"]) == (200, True)
    assert "may unpin it" in done["message"], "it says who may"
    assert (await change(gateway, ADA, session, "pin", seq=seq))[1]["done"] is False
    assert await list_pinned(gateway, ADA, session) == [seq]
    await tell(gateway, ADA, "and on", said=2)
    asked = str(gateway.model.requests[-1])
    assert PINS_HEADING in asked
    assert (await change(gateway, ADA, session, "unpin", seq=seq))[1]["done"] is True
    assert await list_pinned(gateway, ADA, session) == []
    await tell(gateway, ADA, "and further", said=3)
    assert PINS_HEADING not in str(gateway.model.requests[-1])


async def test_nobody_pins_or_unpins_in_a_session_that_they_may_not_see(gateway: ApiGateway) -> None:
    session, seq = await tell(gateway, ADA, TOLD)
    for what in ("pin", "unpin"):
        status, answer = await change(gateway, BOB, session, what, seq=seq)
        assert status == 404
        assert TOLD not in str(answer)
    assert await list_pinned(gateway, ADA, session) == []
    assert (await change(gateway, ADA, session, "pin", seq=10_000))[1]["done"] is False


async def test_an_erasure_reaches_a_pinned_entry_and_what_was_said_about_it(gateway: ApiGateway) -> None:
    session, seq = await tell(gateway, ADA, TOLD)
    await change(gateway, ADA, session, "pin", seq=seq)
    async with gateway.client(ADA) as client:
        await client.post("/api/messages", json={"chat": "home", "text": "/pins"})

        async def look() -> bool:
            return "pinned by" in str(await gateway.entries(session))

        await wait_until(look)
    async with gateway.client() as client:
        erased = await client.post(f"/api/sessions/{session}/erase", json={"seqs": [seq]})
        assert erased.status_code == 200, erased.text
    assert await list_pinned(gateway, ADA, session) == []
    log = await gateway.entries(session)
    assert not [e for e in log if e["kind"] == "notified" and "door code" in str(e["body"])]
