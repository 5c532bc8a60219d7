"""Accepts webhooks: proves the sender, renders the delivery into a message, and stores it once.

What a webhook says is data of somebody else, never a command and never the words of the person in whose conversation it
is heard. The task that the configuration gives to the agent is the only text that counts as an instruction.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from everhold.config import Settings
from everhold.config.settings import HookSettings
from everhold.core.address import derive_address, parse_address
from everhold.core.entries import ChatLocation, TextPiece
from everhold.core.hook_template import HIDDEN_HEADERS, HookDocument, is_wanted, render_template
from everhold.core.people import HOOK_PLATFORM, PERSON_MEMBER, build_identity
from everhold.engine.session_access import find_session_start
from everhold.errors import InvalidRequest, NotFound, Transient
from everhold.infra.deep_json import MAX_DEPTH, cut_deep_parts
from everhold.infra.secret import SecretString
from everhold.ingress.accept import build_dedup_key
from everhold.platforms.hook_signatures import find_objection, find_scheme, sign_delivery
from everhold.ports.clock import Clock
from everhold.ports.platform import WEBHOOK_EVENT, AcceptMessage, AcceptResult, IncomingMessage
from everhold.ports.store import Store

REPEAT_SECONDS: Final = 600
"""Without an id of the delivery, the same body within this time is the same delivery."""
MAX_ID_CHARS: Final = 200
UNWANTED: Final = "unwanted"
"""The outcome of a delivery that `when` leaves out."""
UNPROVEN: Final = "unproven"
"""The outcome of a delivery whose sender is not proven."""


class HookPreview(Struct, frozen=True, kw_only=True):
    """What would be heard of a delivery."""

    address: str
    task: str
    text: str
    id: str
    """The id by which a repeat is recognised; empty: the body is compared."""
    is_wanted: bool


class HookReceiver:
    """Receives the deliveries of all configured hooks."""

    def __init__(self, store: Store, *, settings: Callable[[], Settings], accept: AcceptMessage, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._accept = accept
        self._clock = clock

    async def receive(self, name: str, headers: Mapping[str, str], body: bytes) -> AcceptResult:
        """Accept a delivery and return after its commit. Raises NotFound or InvalidRequest.

        `headers` have lower-case names. The sender is proven before the body is read as JSON.
        """
        hook, secret = self._find_hook(name)
        now = self._clock.now()
        scheme = find_scheme(hook.scheme, hook.header)
        if objection := find_objection(scheme, secret, headers, body, now=now):
            return AcceptResult(outcome=UNPROVEN, reason=objection)
        document = read_document(body, {**headers, scheme.header: ""})
        if not is_wanted(document, hook.when):
            return AcceptResult(outcome=UNWANTED)
        incoming = await self._find_person(build_hook_message(hook, document), find_hook_address(hook))
        template = hook.delivery_id or scheme.delivery_id
        if id := render_template(template, document)[:MAX_ID_CHARS]:
            return await self._accept(_with_id(incoming, id))
        return await self._accept_without_id(incoming, body, now)

    def preview(self, name: str, headers: Mapping[str, str], body: bytes) -> HookPreview:
        """Return what would be heard of a delivery. Nothing is stored."""
        hook, _ = self._find_hook(name)
        document = read_document(body, headers)
        return HookPreview(
            address=find_hook_address(hook),
            task=hook.task,
            text=render_template(hook.text, document),
            id=render_template(hook.delivery_id or find_scheme(hook.scheme, hook.header).delivery_id, document),
            is_wanted=is_wanted(document, hook.when),
        )

    def sign(self, name: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the headers of a delivery with a signature as its sender makes it, for a test."""
        hook, secret = self._find_hook(name)
        scheme = find_scheme(hook.scheme, hook.header)
        signed = sign_delivery(
            scheme, secret, body, now=self._clock.now(), id=headers.get(scheme.id_header, "") or "test"
        )
        return {**headers, **signed}

    def _find_hook(self, name: str) -> tuple[HookSettings, SecretString]:
        hook = self._settings().hooks.get(name)
        if hook is None:
            raise NotFound(f"there is no hook {name!r}", remedy="configure it under hooks")
        if hook.secret is None:
            raise Transient(f"the secret of the hook {name} is not set", remedy=f"add {hook.secret_env}=… to .env")
        return hook, hook.secret

    async def _find_person(self, incoming: IncomingMessage, address: str) -> IncomingMessage:
        """Return the message as one of the person to whom a direct chat belongs, because the id of a chat need not be
        that of its person. Only that person is present there, whatever the webhook says."""
        place = parse_address(address)
        if place.kind != "dm" or place.person or place.platform == HOOK_PLATFORM:
            return incoming
        bound = await self._store.get_bound_session(address)
        if bound is None:
            return incoming
        owner, _ = await find_session_start(self._store, await self._store.get_session(bound[0]))
        platform, _, id = owner.removeprefix(PERSON_MEMBER).partition(":")
        return structs.replace(incoming, sender=id) if platform == place.platform and id else incoming

    async def _accept_without_id(self, incoming: IncomingMessage, body: bytes, now: float) -> AcceptResult:
        """Accept a delivery that has no id. The same body counts as a repeat for a while."""
        digest, slot = hashlib.sha256(body).hexdigest(), int(now // REPEAT_SECONDS)
        before = build_dedup_key(_with_id(incoming, f"{digest}@{slot - 1}"))
        assert before is not None
        place = await self._store.find_entry_place(before)
        if place is not None:
            entry = await self._store.get_entry(place[0], place[1])
            if now - entry.at < REPEAT_SECONDS:
                return AcceptResult(outcome="duplicate", session=place[0], seq=place[1])
        return await self._accept(_with_id(incoming, f"{digest}@{slot}"))


def _with_id(incoming: IncomingMessage, id: str) -> IncomingMessage:
    return structs.replace(incoming, origin=structs.replace(incoming.origin, message=f"hook/{incoming.hook}/{id}"))


def read_document(body: bytes, headers: Mapping[str, str]) -> HookDocument:
    """Return a delivery as templates see it. A body that is not JSON is a text."""
    text = body.decode("utf-8", "replace")
    data: Any = None
    # also what can be read may be nested too deeply to be written again
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and cut_deep_parts(text) != text:
        raise InvalidRequest("the body is nested too deeply", remedy="send a flat object")
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        data = msgspec.json.decode(body)
    shown = {name: value for name, value in headers.items() if name not in HIDDEN_HEADERS}
    return HookDocument(data, headers=shown, body=text)


def build_hook_message(hook: HookSettings, document: HookDocument) -> IncomingMessage:
    """Return the message of a delivery, without an id."""
    address = parse_address(find_hook_address(hook))
    is_direct = address.kind == "dm"
    piece = TextPiece(
        source="embedded",
        by=build_identity(HOOK_PLATFORM, hook.name),
        name=hook.name,
        text=render_template(hook.text, document),
    )
    return IncomingMessage(
        origin=ChatLocation(
            platform=address.platform,
            account="" if address.platform == HOOK_PLATFORM else address.account or address.agent,
            chat=address.chat,
            thread=address.thread,
        ),
        text=hook.task,
        # in a direct chat its person is present, so the conversation stays that person's
        sender=address.person or (address.chat if is_direct else build_identity(HOOK_PLATFORM, hook.name)),
        name=f"webhook {hook.name}",
        kind=address.kind,
        event=WEBHOOK_EVENT,
        hook=hook.name,
        agent=address.agent,
        pieces=(piece,),
    )


def find_hook_address(hook: HookSettings) -> str:
    """Return the address of the conversation in which a hook is heard."""
    if hook.to:
        return hook.to
    return str(derive_address(agent=hook.agent, platform=HOOK_PLATFORM, account="", kind="dm", chat=hook.name))
