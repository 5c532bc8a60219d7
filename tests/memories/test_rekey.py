"""A link and a move to the person's peer, with every memory service on loopback."""

from __future__ import annotations

from pathlib import Path

from everhold.core.entries import ChatLocation
from everhold.core.people import IdentityProof
from everhold.ports.platform import IncomingMessage
from tests.e2e.running_gateway import RunningGateway
from tests.memories.services import NAMES, MemoryServices

CAROL = "local:carol"


def list_speakers(services: MemoryServices, name: str) -> list[str]:
    """Return under whom a service stores each message."""
    if name == "honcho":
        services.honcho.work()  # it deletes a session some time after it has answered
        return sorted(row["peer_id"] for row in services.honcho.state.messages if row["peer_id"] != "main")
    texts = {
        "hindsight": lambda: [row["text"] for row in services.hindsight.state.documents.values()],
        "mem0": services.mem0.texts,
        "supermemory": services.supermemory.texts,
    }[name]()
    return sorted(text.partition(": word")[0] for text in texts)


async def test_what_was_said_before_a_link_is_moved_to_the_person_s_peer(
    tmp_path: Path, services: MemoryServices
) -> None:
    async def speak(who: str, number: int) -> None:
        place = ChatLocation(platform="terminal", chat=who, message=f"t{number}")
        verdict = await t.app.accept(
            IncomingMessage(origin=place, text=f"word {number}", sender=who, name=who, kind="dm")
        )
        await t.wait_until(lambda: all(len(list_speakers(services, name)) >= number for name in NAMES))
        sessions.append(verdict.session)

    sessions: list[str] = []
    async with RunningGateway(tmp_path, services.config()) as t:
        await speak("ada", 1)
        await speak("carol", 2)
        await t.app.admission.people.link_identity(CAROL, "ada", proof=IdentityProof.OPERATOR, by="test")
        await speak("carol", 3)
        for name in NAMES:
            assert list_speakers(services, name)[:2] == ["ada", "ada"]
            assert list_speakers(services, name)[2].startswith("local"), "a link does not move what is stored"
            plan = await t.app.memory_admin.rekey_memory(name, person="ada", really=True)
            assert plan["begun"], (name, plan)
        await t.wait_until(lambda: all(list_speakers(services, name) == ["ada"] * 3 for name in NAMES))
        await t.wait_until(lambda: not t.app.supervisor.tasks)
        status = await t.app.memory_admin.collect_status()
        await t.assert_sound()
    assert not any(row["dead_letters"] or row["rekeying"] for row in status["memories"])
    assert len(services.honcho.state.sessions) == 2, "the old session is deleted"
