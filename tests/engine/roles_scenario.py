"""A gateway with the real admission and the real roles: one person of every role in every kind of chat."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from everhold.config import Settings, parse_settings
from everhold.core.access import AdmissionDecision
from everhold.core.entries import Entry
from everhold.core.people import IdentityProof
from everhold.core.roles import ChatPlace, PersonRole
from everhold.engine.roles import RoleStanding
from everhold.ingress.admission import AdmissionControl
from everhold.ports.platform import AcceptResult, IncomingMessage
from everhold.testing.gateway import InProcessGateway

CONFIG: Final = """
agents: {main: {}}
platforms:
  fake:
    main:
      access:
        direct: [ada, "fake:2"]
        groups: {open: ["*"], shared: ["*"]}
      groups: {answer: always}
      chats: {shared: {sessions: {group: shared}}}
people:
  - {name: ada, identities: ["fake:1"]}
  - {name: kim, identities: ["fake:3"]}
access: {owners: [ada], pairing: false}
"""
SENDERS: Final = {PersonRole.OWNER: "1", PersonRole.MEMBER: "2", PersonRole.KNOWN: "3", PersonRole.STRANGER: "4"}
"""The id of the sender who has a role in every chat of this configuration."""
PLACES: Final[dict[ChatPlace, dict[str, Any]]] = {
    ChatPlace.DIRECT: {},
    ChatPlace.OWN_SESSION: {"chat": "open", "kind": "group"},
    ChatPlace.SHARED: {"chat": "shared", "kind": "group"},
}


class RolesScenario:
    """Sends messages as somebody with a role. It is also the admission and the role source of the gateway."""

    def __init__(self, path: Path, config: str = CONFIG) -> None:
        self.settings = parse_settings(config)
        self.gateway = InProcessGateway(path)
        self.gateway.admit_message = self._admit  # type: ignore[method-assign]
        self.gateway.roles = self
        self._admission: AdmissionControl | None = None
        self._next_settings: Settings | None = None

    @property
    def admission(self) -> AdmissionControl:
        if self._admission is None:
            gateway = self.gateway
            self._admission = AdmissionControl(
                settings=lambda: self.settings,
                store=gateway.store,
                platforms={("fake", "main"): gateway.platform},
                clock=gateway.clock,
                chance=gateway.chance,
                log=gateway.logger,
            )
        return self._admission

    async def _admit(self, incoming: IncomingMessage) -> AdmissionDecision:
        decision = await self.admission(incoming)
        if self._next_settings is not None:
            self.settings, self._next_settings = self._next_settings, None
        return decision

    def restart(self) -> None:
        """Start the next process of the gateway. Its admission reads the store anew."""
        self.gateway.start()
        self._admission = None

    async def find_role(self, entry: Entry) -> RoleStanding:
        return await self.admission.roles.find_role(entry)

    async def find_person_role(self, identity: str, *, address: str) -> RoleStanding:
        return await self.admission.roles.find_person_role(identity, address=address)

    def change_config(self, old: str, new: str) -> None:
        self.settings = edit_config(old, new)

    def change_config_after_admission(self, old: str, new: str) -> None:
        """Change the configuration after the next message was admitted, and before it is handled."""
        self._next_settings = edit_config(old, new)

    def link(self, identity: str, person: str) -> None:
        people = self.admission.people
        self.gateway.run(people.link_identity(identity, person, proof=IdentityProof.OPERATOR, by="operator"))

    def send(self, text: str, role: PersonRole, place: ChatPlace, *, rest: bool = True, **more: Any) -> AcceptResult:
        sender = SENDERS[role]
        where = {"chat": sender, **PLACES[place]}
        return self.gateway.send_message(text, who=sender, rest=rest, **{**where, **more})

    def ask(self, text: str, role: PersonRole, place: ChatPlace, **more: Any) -> str:
        """Send a message; return everything that is shown in reply."""
        before = len(self.gateway.list_shown_texts())
        self.send(text, role, place, **more)
        return "\n".join(self.gateway.list_shown_texts()[before:])


def edit_config(old: str, new: str) -> Settings:
    assert old in CONFIG
    return parse_settings(CONFIG.replace(old, new))
