"""What ships keeps the promises it is made to keep: the fakes and the store satisfy the ports they stand in for."""

from __future__ import annotations

from everhold import Chance, MemoryProvider, Model, Platform, Tool
from everhold.ports.store import Store
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.scene import Dice
from everhold.testing.fakes import FakePlatform, FakeProvider, FakeTool, ScriptedModel


def models(it: ScriptedModel) -> Model:
    return it


def platforms(it: FakePlatform) -> Platform:
    return it


def providers(it: FakeProvider) -> MemoryProvider:
    return it


def tools(it: FakeTool) -> Tool:
    return it


def stores(it: SqliteStore) -> Store:
    return it


def chances(it: Dice) -> Chance:
    return it
