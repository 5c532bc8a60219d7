"""Stores what the owner has seen of each tool server, and records confirmations. `core/tool_pins.py` decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everhold.core.tool_pins import (
    ToolPins,
    confirm_waiting,
    decode_pins,
    describe_pins,
    encode_pins,
    review_tools,
)
from everhold.engine.state_updates import update_state_record
from everhold.errors import Conflict, InvalidRequest, NotFound
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.model import ToolSpec
from everhold.ports.store import StateNamespace, Store


class ToolPinRegistry:
    """The pins of all tool servers of one store."""

    def __init__(self, store: Store, *, clock: Clock, log: EventLogger) -> None:
        self._store = store
        self._clock = clock
        self._log = log

    async def review(self, server: str, entry: str, offered: Mapping[str, ToolSpec]) -> ToolPins:
        """Compare what a server offers with what the owner has seen, and return the result."""
        before: list[ToolPins | None] = []

        def decide(text: str | None) -> str:
            before[:] = [decode_pins(text)]
            return encode_pins(review_tools(before[0], entry, offered))

        pins = decode_pins(await self._update(server, decide))
        assert pins is not None
        if pins.waiting and before[0] != pins:
            self._log.warning("mcp.tools_changed", mcp=server, tools=sorted(pins.waiting)[:20])
        return pins

    async def list_servers(self) -> list[dict[str, Any]]:
        """Return the pins of each server, for operators."""
        records = await self._store.list_state_records(StateNamespace.TOOL_PINS)
        found = {record.key: decode_pins(record.value) for record in records}
        return [describe_pins(server, pins) for server, pins in sorted(found.items()) if pins is not None]

    async def confirm(self, server: str, digest: str) -> dict[str, Any]:
        """Offer what waits at a server from now on. `digest` names what the owner looked at.

        Raises Conflict if the server has changed its tools since, and NotFound if nothing waits.
        """
        confirmed: list[str] = []

        def decide(text: str | None) -> str | None:
            pins = decode_pins(text)
            if pins is None or not pins.waiting:
                raise NotFound(f"no tool of {server} waits for a confirmation", remedy="see `everhold tools`")
            if not digest:
                raise InvalidRequest("the digest is missing", remedy="`everhold tools` shows it")
            if digest != pins.waiting_digest:
                raise Conflict(
                    f"the tools of {server} are not those of the digest {digest}; they may have changed since",
                    remedy="look at them again with `everhold tools`",
                )
            confirmed[:] = sorted(pins.waiting)
            return encode_pins(confirm_waiting(pins))

        await self._update(server, decide)
        self._log.info("mcp.tools_confirmed", mcp=server, tools=confirmed[:20])
        return {"server": server, "confirmed": confirmed}

    async def _update(self, server: str, decide: Any) -> str | None:
        return await update_state_record(
            self._store, StateNamespace.TOOL_PINS, server, at=self._clock.now(), decide=decide
        )
