"""The suite every store must pass. A store joins with a subclass that says how one is opened:

class TestMyStore(StoreContract):
    def open(self, home: Path) -> Store:
        return MyStore.open(home, chance=Dice())
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from everhold.core.entries import Draft, Thought
from everhold.errors import Conflict, Misuse
from everhold.ports.store import Spend, Step, Store
from everhold.testing.contracts.scene import Dice, Scene, promise
from everhold.testing.contracts.store_lanes import LanesContract
from everhold.testing.contracts.store_log import LogContract
from everhold.testing.contracts.store_operations import OperationsContract
from everhold.testing.contracts.store_state import StateContract

__all__ = ["Dice", "Scene", "StoreContract"]


class StoreContract(LogContract, OperationsContract, LanesContract, StateContract):
    def open(self, home: Path) -> Store:
        """A new, empty store that may use the directory `home`."""
        raise NotImplementedError

    @promise
    async def test_what_was_spent_adds_up_per_budget_and_day(self, scene: Scene) -> None:
        await scene.commit(spends=(Spend(budget="agent:main", day="d1", usd=0.25, tokens=10),))
        await scene.commit(
            spends=(
                Spend(budget="agent:main", day="d1", usd=0.5, tokens=5),
                Spend(budget="agent:main", day="d2", usd=1.0),
                Spend(budget="person:ada", day="d1", tokens=1),
            )
        )
        spent = await scene.store.get_spend("agent:main", "d1")
        assert (spent.usd, spent.tokens) == (0.75, 15)
        assert (await scene.store.get_spend("agent:main", "d2")).usd == 1.0
        assert await scene.store.get_spend("nobody", "d1") == Spend(budget="nobody", day="d1")
        assert await scene.store.list_spends("agent:", "d1") == [spent]
        assert [it.budget for it in await scene.store.list_spends("", "d1")] == ["agent:main", "person:ada"]
        assert await scene.store.list_spends("chat:", "d1") == []

    @promise
    async def test_content_is_kept_once_under_its_hash(self, scene: Scene) -> None:
        digest = hashlib.sha256(b"prompt").hexdigest()
        await scene.commit(blobs=(b"prompt", b""))
        await scene.commit(blobs=(b"prompt",))
        assert await scene.store.get_blob(digest) == b"prompt"
        assert await scene.store.get_blob(hashlib.sha256(b"").hexdigest()) == b""
        await scene.commit(drop_blobs=(digest,))
        assert await scene.store.get_blob(digest) is None

    @promise
    async def test_a_record_is_not_kept_if_anything_was_erased_since_its_operation_began(self, scene: Scene) -> None:
        await scene.open("other")
        said = await scene.hear("a secret", session="other")
        at_work = await scene.begin(await scene.hear())
        await scene.commit(op=at_work, records=(b"first",))
        await scene.erase(said, session="other")
        await scene.commit(op=at_work, records=(b"second",), blobs=(b"prompt",))
        await scene.end(at_work)
        later = await scene.begin(await scene.hear())
        await scene.commit(op=later, records=(b"third",))
        blobs = (b"first", b"second", b"third", b"prompt")
        kept = [await scene.store.get_blob(hashlib.sha256(blob).hexdigest()) for blob in blobs]
        assert kept == [b"first", None, b"third", b"prompt"]
        with pytest.raises(Misuse):
            await scene.commit(records=(b"nobody's",))

    @promise
    async def test_whoever_has_not_read_the_newest_thought_is_told(self, scene: Scene) -> None:
        await scene.open("other")
        said = await scene.hear("a secret", session="other")
        op = await scene.begin(await scene.hear())
        read = (await scene.store.read_feed())[-1].pos
        await scene.hear()
        thought = Draft(body=Thought(text="hm"), author="agent:main", op=op)
        await scene.commit(thought, op=op, step=Step.THINK)
        with pytest.raises(Conflict):
            await scene.erase(said, session="other", read=read)
        assert (await scene.store.get_entry("other", said)).body is not None
        read = (await scene.store.read_feed())[-1].pos
        await scene.hear()
        await scene.erase(said, session="other", read=read)

    @promise
    async def test_a_person_is_known_by_each_of_their_identities(self, scene: Scene) -> None:
        await scene.store.link_identity("telegram:1", "ada", at=1.0)
        await scene.store.link_identity("slack:U1", "ada", at=2.0)
        assert await scene.store.get_person("telegram:1") == "ada"
        await scene.store.link_identity("telegram:1", "bob", at=3.0)
        assert await scene.store.get_person("telegram:1") == "bob"
        assert await scene.store.get_person("slack:U1") == "ada"
        assert await scene.store.get_person("slack:U2") is None
        assert await scene.store.list_identity_links() == [("slack:U1", "ada"), ("telegram:1", "bob")]
        await scene.store.link_identity("telegram:1", "", at=4.0)
        assert await scene.store.get_person("telegram:1") is None
        assert await scene.store.list_identity_links() == [("slack:U1", "ada")]
