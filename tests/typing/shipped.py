"""The fakes and the store that ship with everhold satisfy their ports."""

from __future__ import annotations

from everhold import MemoryProvider, Model, Platform, RandomSource, Tool
from everhold.ports.store import Store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import SeededRandom
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakePlatform, FakeTool


def models(it: FakeModel) -> Model:
    return it


def platforms(it: FakePlatform) -> Platform:
    return it


def providers(it: FakeMemoryProvider) -> MemoryProvider:
    return it


def tools(it: FakeTool) -> Tool:
    return it


def stores(it: SqliteStore) -> Store:
    return it


def random_sources(it: SeededRandom) -> RandomSource:
    return it
