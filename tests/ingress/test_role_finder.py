"""A role is computed once for one state of the configuration and the people, and every change of either counts at once.

A turn asks for the role twice: when its message is accepted, and when it runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from everhold.config import parse_settings
from everhold.core.people import IdentityProof
from everhold.core.roles import PersonRole
from everhold.ingress import roles
from everhold.ingress.roles import RoleFinder
from tests.ingress.harness import CONFIG, IngressHarness

ADA: Final = ("fake:1001", "agent:main:fake/main:dm:1001")
PAIRED: Final = ("fake:555", "agent:main:fake/main:dm:555")


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngressHarness]:
    harness = IngressHarness(tmp_path)
    yield harness
    await harness.store.close()


async def find_role(harness: IngressHarness, person: tuple[str, str] = ADA) -> PersonRole | None:
    identity, address = person
    return (await harness.admission.roles.find_person_role(identity, address=address)).role


def count_computations(patch: pytest.MonkeyPatch) -> list[str]:
    counted: list[str] = []
    compute = roles.compute_configured_role

    def count(chat: Any, *rest: Any) -> PersonRole | None:
        counted.append(chat.sender)
        return compute(chat, *rest)

    patch.setattr(roles, "compute_configured_role", count)
    return counted


async def test_a_role_is_computed_once_while_nothing_changes(
    harness: IngressHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = count_computations(monkeypatch)
    assert [await find_role(harness) for _ in range(50)] == [PersonRole.MEMBER] * 50
    assert counted == ["1001"]
    assert await find_role(harness, PAIRED) is None
    assert await find_role(harness) is PersonRole.MEMBER
    assert counted == ["1001", "555"], "another sender has a role of its own"


async def test_the_known_roles_are_bounded(harness: IngressHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "MAX_KNOWN_STANDINGS", 10)
    for number in range(100):
        place = ("fake:7", f"agent:main:fake/main:group:open{number}:person:7")
        await harness.admission.roles.find_person_role(place[0], address=place[1])
        assert len(harness.admission.roles._known) <= 10


async def demote(harness: IngressHarness) -> None:
    harness.settings = parse_settings(CONFIG.replace("direct: [ada, ", "direct: ["))


async def promote(harness: IngressHarness) -> None:
    harness.settings = parse_settings(CONFIG.replace("owners: [root]", "owners: [root, ada]"))


async def unlink(harness: IngressHarness) -> None:
    await harness.admission.people.unlink_identity(ADA[0], by="operator")


CHANGES: Final[dict[str, tuple[Callable[[IngressHarness], Awaitable[None]], PersonRole | None]]] = {
    "no longer listed": (demote, None),
    "now an owner": (promote, PersonRole.OWNER),
    "no longer the person": (unlink, None),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_counts_for_the_next_message(harness: IngressHarness, change: str) -> None:
    act, role = CHANGES[change]
    assert await find_role(harness) is PersonRole.MEMBER
    await act(harness)
    assert await find_role(harness) is role


@pytest.mark.parametrize("change", CHANGES)
async def test_a_role_that_outlives_its_basis_is_noticed(
    harness: IngressHarness, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Plants a cache that looks at nothing but the sender and the place."""
    kept: dict[Any, Any] = {}
    find = RoleFinder.find_sender_role

    async def keep(self: RoleFinder, identity: str, **more: Any) -> Any:
        if identity not in kept:
            kept[identity] = await find(self, identity, **more)
        return kept[identity]

    monkeypatch.setattr(RoleFinder, "find_sender_role", keep)
    with pytest.raises(AssertionError):
        await test_a_change_counts_for_the_next_message(harness, change)


async def test_an_admission_by_an_operator_counts_at_once_and_so_does_its_end(harness: IngressHarness) -> None:
    """It is no part of the configuration, and the proof of an identity may stay as it is."""
    assert await find_role(harness, PAIRED) is None
    code = await harness.admission.pairing.request_pairing("fake", "main", "555", name="Eve", chat="555")
    await harness.admission.pairing.approve_code(code)
    assert await find_role(harness, PAIRED) is PersonRole.MEMBER
    await harness.admission.people.link_identity(PAIRED[0], "ada", proof=IdentityProof.LINKED, by="operator")
    await harness.admission.pairing.revoke_identity(PAIRED[0])
    await harness.admission.people.unlink_identity(PAIRED[0], by="operator")
    assert await find_role(harness, PAIRED) is None
