"""A provider from another package. Its service outlives it and behaves as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from everhold.errors import Transient
from everhold.infra.secret import SecretString
from everhold.ports.memory import MemoryBatch, MemoryCapability, MemoryHit, MemoryQuery, ProviderHealth
from everhold.ports.model import ToolSpec
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.plugin import PluginContext
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult
from everhold.testing.fakes import get_memory_text


class LedgerService:
    """The service of all ledger providers of a test."""

    def __init__(self) -> None:
        self.built: list[LedgerProvider] = []
        self.kept: list[tuple[str, str]] = []
        """(account, text) of everything stored."""
        self.names: list[str] = []
        self.key = ""
        """The accepted key; empty for any."""
        self.signature: Callable[[], Any] = lambda: None
        self.fails: Callable[[], None] = lambda: None
        """Called when a provider is built."""
        self.offers: frozenset[MemoryCapability] = frozenset({MemoryCapability.SIGNATURE, MemoryCapability.CLOSE})
        self.tools: Callable[[], Any] = lambda: [CountTool()]
        self.prompt: Callable[[], Any] = lambda: "The ledger counts."
        self.health: Callable[[], Any] = lambda: ProviderHealth(healthy=True, text="counting")
        self.during: Callable[[LedgerProvider, MemoryBatch], Awaitable[None]] | None = None
        """Called while an item is being stored."""


ledger_service = LedgerService()


class LedgerSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    account: str = "shared"
    api_key: SecretString | None = None
    keyed: bool = True


class LedgerProvider:
    def __init__(self, settings: LedgerSettings, context: PluginContext) -> None:
        ledger_service.fails()
        self.settings = settings
        self.context = context
        self.capabilities = ledger_service.offers
        self.delivery = DeliveryGuarantee.KEYED if settings.keyed else DeliveryGuarantee.BLIND
        self.stored = 0
        self.asking = 0
        self.closed = asyncio.Event()
        self.personas: list[str] = []
        ledger_service.built.append(self)

    def set_persona(self, persona: str) -> None:
        self.personas.append(persona)

    @property
    def key(self) -> str:
        return self.settings.api_key.reveal() if self.settings.api_key else ""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        assert not self.closed.is_set()
        self.asking += 1
        try:
            if ledger_service.key and self.key != ledger_service.key:
                raise Transient("the key is wrong")
            if ledger_service.during is not None:
                await ledger_service.during(self, batch)
            ledger_service.names.append(batch.name)
            ledger_service.kept += [(self.settings.account, get_memory_text(item)) for item in batch.items]
            self.stored += 1
            return {item.key: item.key for item in batch.items}
        finally:
            self.asking -= 1

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return []

    async def close(self) -> None:
        assert not self.asking
        self.closed.set()

    def cache_busting_signature(self) -> dict[str, str] | None:
        signature: dict[str, str] | None = ledger_service.signature()
        return signature

    def tools(self) -> Any:
        return ledger_service.tools()

    def prompt(self) -> Any:
        return ledger_service.prompt()

    async def health(self) -> Any:
        return ledger_service.health()


class CountTool:
    """A tool of the ledger provider."""

    effect = ToolEffect.PURE
    deadline = 5.0

    def __init__(self, name: str = "ledger_count") -> None:
        self.spec = ToolSpec(name=name, description="counts", parameters={"type": "object"})

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        assert not ledger_service.built[-1].closed.is_set()
        return ToolResult(text=f"{len(ledger_service.kept)} pages, by ledger {len(ledger_service.built)}")

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


class LedgerFactory:
    Settings = LedgerSettings

    def __call__(self, settings: LedgerSettings, context: PluginContext) -> LedgerProvider:
        return LedgerProvider(settings, context)


factory = LedgerFactory()
