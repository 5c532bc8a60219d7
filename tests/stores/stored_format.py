"""Describes all that a home stores, one line for each name, so that a rename shows as a changed line.

Stored data outlives the build that wrote it. `stored_format.txt` holds the description of the present format, and
test_stored_format.py compares. Class names are not stored, so they do not appear.
"""

from __future__ import annotations

import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec
from msgspec import inspect

from everhold.api.logins import LoginCodeRecord, LoginRecord
from everhold.core import consumers
from everhold.core.address import Address
from everhold.core.approvals import ApprovalRecord, RememberedRule
from everhold.core.budget import list_turn_budgets
from everhold.core.entries import BODY_TYPES, BODY_VERSION, ChatLocation, Entry, EntryKind, Noted, Stamp
from everhold.core.exchange import build_exchange_key, build_note, build_retraction
from everhold.core.pairing import (
    AccountInvitation,
    IdentityLinkOffer,
    PairingGrant,
    PairingRequest,
    WrongCodeCount,
    digest_code,
)
from everhold.core.quotas import DailyUse
from everhold.core.recall import RecallRecord, RecallTarget, RecallTrace
from everhold.core.recall_blobs import PACKED, TextSource, pack_record, pack_text
from everhold.core.schedule import Schedule
from everhold.core.tool_pins import ToolPins
from everhold.errors import Transient
from everhold.hermes.importer.history import ImportProgress
from everhold.ingress.accept import build_dedup_key
from everhold.ingress.held_messages import HeldMessage
from everhold.ports.memory import Exchange, JobResult, MemoryNote, MemoryRetraction
from everhold.ports.model import ToolSpec
from everhold.ports.platform import IncomingMessage
from everhold.ports.store import DeadLetter, InFlightBatch, StateNamespace, Step, make_state_scope
from everhold.stores.sqlite import migrate
from everhold.testing.fakes import FakeMemoryProvider
from everhold.testing.gateway import InProcessGateway
from tests.stores.home import open_store, run_coroutine

FILE: Final = Path(__file__).parent / "stored_format.txt"
HEAD: Final = """\
# All that a home stores. A build must read what every earlier build wrote.
# A line may be added. If a line is changed or removed, the next migration has to convert what is stored.
# python -m tests.stores.stored_format writes this file.
"""

STATE_VALUES: Final[dict[StateNamespace, Any]] = {
    StateNamespace.SCHEDULE: Schedule,
    StateNamespace.PAIRING_REQUEST: PairingRequest,
    StateNamespace.PAIRING_GRANT: PairingGrant,
    StateNamespace.PAIRING_ATTEMPTS: WrongCodeCount,
    StateNamespace.INVITATION: AccountInvitation,
    StateNamespace.IDENTITY_LINK: IdentityLinkOffer,
    StateNamespace.TOOL_PINS: ToolPins,
    StateNamespace.LOGIN: LoginRecord,
    StateNamespace.LOGIN_CODE: LoginCodeRecord,
    StateNamespace.HELD_MESSAGE: HeldMessage,
    StateNamespace.QUOTA: DailyUse,
    StateNamespace.HOST_SETTINGS: dict[str, str],
    StateNamespace.APPROVAL: ApprovalRecord,
    StateNamespace.APPROVAL_RULE: RememberedRule,
}
"""The state records whose value is a JSON object. The others are plain text."""
BLOBS: Final[dict[str, Any]] = {"recall": RecallRecord, "tools": tuple[ToolSpec, ...]}
DIGESTED: Final[dict[str, Any]] = {
    "exchange": Exchange,
    "note": MemoryNote,
    "retraction": MemoryRetraction,
    "job": JobResult,
}
"""A batch in flight is stored with the digest of these. If their JSON changes, its retry is refused as altered."""


def render_stored_format() -> str:
    parts = (
        *_describe_database(),
        *_describe_names(),
        *_describe_entries(),
        *_describe_records(),
        *_describe_keys(),
        *_describe_packed_recall(),
        *_describe_samples(),
    )
    return HEAD + "".join(f"{line}\n" for line in parts)


# -- JSON --------------------------------------------------------------------------------------------------------------

_SCALARS: Final[dict[type, str]] = {
    inspect.StrType: "text",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
    inspect.BytesType: "bytes",
    inspect.NoneType: "null",
    inspect.AnyType: "anything",
}


def describe_type(path: str, type_: inspect.Type, *, default: str = "", above: tuple[type, ...] = ()) -> Iterator[str]:
    """One line for each field that is stored below `path`, with its type and the value that a missing field has."""
    match type_:
        case inspect.StructType(cls=cls) if cls in above:
            yield f"{path}: as above{default}"
        case inspect.StructType(cls=cls, fields=fields, tag=tag, tag_field=tag_field):
            if tag is not None:
                path = f"{path}({tag_field}={tag})"
            yield f"{path}: object{default}"
            for field in fields:
                given = "" if field.required else f" = {_render_default(field)}"
                yield from describe_type(f"{path}.{field.encode_name}", field.type, default=given, above=(*above, cls))
        case inspect.TupleType(item_types=items):
            yield f"{path}: {len(items)} values{default}"
            for index, each in enumerate(items):
                yield from describe_type(f"{path}[{index}]", each, above=above)
        case inspect.VarTupleType(item_type=item) | inspect.FrozenSetType(item_type=item):
            yield f"{path}: list{default}"
            yield from describe_type(f"{path}[]", item, above=above)
        case inspect.DictType(value_type=value):
            yield f"{path}: map{default}"
            yield from describe_type(f"{path}{{}}", value, above=above)
        case inspect.EnumType(cls=enum):
            yield f"{path}: {' | '.join(repr(member.value) for member in enum)}{default}"
        case inspect.LiteralType(values=values):
            yield f"{path}: {' | '.join(map(repr, values))}{default}"
        case inspect.UnionType(types=types):
            for each in types:
                yield from describe_type(path, each, default=default, above=above)
        case _:
            yield f"{path}: {_SCALARS[type(type_)]}{default}"


def _render_default(field: inspect.Field) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return msgspec.json.encode(value).decode()


# -- sections ----------------------------------------------------------------------------------------------------------


def _describe_database() -> Iterator[str]:
    yield f"application id: {migrate.APPLICATION_ID:#x}"
    yield f"version of entry bodies: {BODY_VERSION}"
    with tempfile.TemporaryDirectory() as directory:
        run_coroutine(open_store(Path(directory) / "log.db").close())
        db = apsw.Connection(str(Path(directory) / "log.db"))
        found: list[Any] = db.execute(
            "select type, name, sql from sqlite_schema where sql is not null order by 1 desc, 2"
        ).fetchall()
        for type_, name, sql in found:
            if type_ != "table":
                yield f"{type_} {name}: {' '.join(sql.split())}"
                continue
            columns: list[Any] = db.execute(f"pragma table_info({name})").fetchall()
            for _, column, affinity, not_null, default, key in columns:
                rules = [affinity.lower(), "not null" * not_null]
                rules += [f"default {default}"] if default is not None else []
                rules += [f"key {key}"] if key else []
                yield f"table {name}.{column}: {' '.join(filter(None, rules))}"
        db.close()


def _describe_names() -> Iterator[str]:
    names = (consumers.TURN, consumers.COMMANDS, consumers.COMPRESSION, consumers.BACKLINKS)
    for name in (*names, consumers.TASKS, consumers.REVIEW, consumers.APPROVALS):
        yield f"consumer: {name}"
    yield f"consumer of a sub-agent: {consumers.delegate_consumer(0)}"
    yield f"consumer of a memory: {consumers.memory_consumer('NAME')}"
    yield f"consumer of a backfill: {consumers.backfill_consumer('NAME')}"
    yield f"consumer of a platform: {consumers.platform_consumer('PLATFORM', 'ACCOUNT')}"
    for namespace in StateNamespace:
        yield f"state namespace: {namespace.value}"
    yield f"state scope: {make_state_scope('PLATFORM', 'ACCOUNT')}"
    for step in Step:
        yield f"step: {step.value}"
    for state in sorted(inspect.type_info(DeadLetter).fields[-1].type.values):  # type: ignore[attr-defined]
        yield f"dead letter state: {state}"
    for scheduled in (False, True):
        budgets = list_turn_budgets("AGENT", Stamp(person="PERSON", address="ADDRESS"), scheduled=scheduled)
        yield f"budgets of a {'scheduled ' * scheduled}turn: {' '.join(budgets)}"


def _describe_entries() -> Iterator[str]:
    for kind in EntryKind:
        yield from describe_type(f"entry {kind.value}", inspect.type_info(BODY_TYPES[kind]))


def _describe_records() -> Iterator[str]:
    yield from describe_type("in_flight", inspect.type_info(InFlightBatch))
    for namespace, value in STATE_VALUES.items():
        yield from describe_type(f"state {namespace.value}", inspect.type_info(value))
    for what, value in BLOBS.items():
        yield from describe_type(f"blob {what}", inspect.type_info(value))
    for what, value in DIGESTED.items():
        yield from describe_type(f"digested {what}", inspect.type_info(value))


def _describe_keys() -> Iterator[str]:
    origin = ChatLocation(platform="P", account="A", chat="C", thread="T", message="M")
    incoming = IncomingMessage(origin=origin, text="x", sender="S", revision="R")
    note = Entry(
        session="s", seq=3, pos=3, kind=EntryKind.NOTED, op=None, author="person:ada", at=1.0, version=1,
        body=Noted(text="x"), digest=b"",
    )  # fmt: skip
    made, taken_back = build_note(note, agent="main"), build_retraction(note, agent="main", turns=[2])
    assert made is not None
    assert taken_back is not None
    yield f"dedup key: {build_dedup_key(incoming)}"
    yield f"address: {Address(agent='G', platform='P', account='A', kind='group', chat='C', thread='T', person='S')}"
    yield f"memory keys: {build_exchange_key('s', 2)} {made.key} {taken_back.key}"
    yield f"digest of a code: {digest_code('ABCD-EFGH', whose='offer')[:16]}"
    yield f"state hermes_import: {ImportProgress('s', 1, (2, 3, 4, 0.5), 6).encode()}"


def _describe_packed_recall() -> Iterator[str]:
    """Packed blobs are lists without names, so the order of their fields is stored."""
    shown = RecallTrace(provider="P", session="s", seq=3, person="ada", at=1.0, score=0.5)
    left_out = RecallTrace(provider="Q", origin="O", kind="note", text="T", why_not="W")
    asked = RecallTarget(session="s", generation=1, takes=(2,))
    record = RecallRecord(asked=asked, audience=("ada",), facts=(shown,), shown=(shown,), left_out=(left_out,))
    said = "the plan of the cellar"
    source = TextSource(session="s", seq=3, shown=said, text=f"here is {said}")
    for what, data in (("record", pack_record(record)), ("text", pack_text(f"| {said}!", [source]))):
        unpacked = zlib.decompress(data.removeprefix(PACKED)).decode()
        yield f"packed recall {what} after {PACKED!r}: {unpacked}"


def _describe_samples() -> Iterator[str]:
    """What one message leaves in a store whose platform and memory do not answer."""
    with tempfile.TemporaryDirectory() as directory:
        gateway = InProcessGateway(Path(directory))
        with gateway.run_started():
            memory = FakeMemoryProvider()
            gateway.runtimes.memories = {"a": memory}
            for faults in (memory.faults, gateway.platform.faults):
                faults.fail_next(Transient("down"), times=9)
            session = gateway.send_message("hello", rest=False).session
            gateway.pass_time(1.0)
            cursors = {cursor.consumer: cursor for cursor in gateway.run(gateway.store.list_cursors(session=session))}
            for name in ("memory:a", "platform:fake:main"):
                in_flight = cursors[name].in_flight
                assert in_flight is not None, "it was not sent"
                text = msgspec.json.encode(in_flight).decode()
                yield f"sample of {name} in {session}: {text}"
            gateway.run(gateway.control.erase_entries(session, [1], why="asked"))
            (line,) = gateway.control.read_erasures()
    yield f"line of erasures.log: {' '.join(sorted(line))}"


if __name__ == "__main__":
    sys.stdout.write(render_stored_format())
