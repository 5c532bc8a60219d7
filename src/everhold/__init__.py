"""Everhold runs long-lived agents behind chat platforms and remembers for them.

These are the names users and plug-in authors may import; everything else may move. They load on first use, so that
`import everhold` costs nothing and pulls in no dependency.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

__version__ = "0.1.0.dev0"

_HOMES: Final = {
    "everhold.core.entries": "Attachment Call Place Stamp Usage",
    "everhold.errors": "Conflict EverholdError InDoubt Misuse NotFound Overloaded Partial Refused TooLong Transient",
    "everhold.ports.clock": "Chance Clock",
    "everhold.ports.log": "Log",
    "everhold.ports.memory": (
        "Batch Capability Exchange Forgotten Found Health Job MemoryProvider Note Query Retraction Scope Switch "
        "Utterance"
    ),
    "everhold.ports.model": "Answer Message Model Request ToolSpec",
    "everhold.ports.platform": "Accept Delivery Drafting Incoming Outgoing Platform PlatformOffset Verdict",
    "everhold.ports.plugin": "Context",
    "everhold.ports.tool": "Effect Result Saying Tool ToolContext",
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names.split()}

if TYPE_CHECKING:  # the same names for readers that do not run the code
    from everhold.core.entries import (
        Attachment as Attachment,
        Call as Call,
        Place as Place,
        Stamp as Stamp,
        Usage as Usage,
    )
    from everhold.errors import (
        Conflict as Conflict,
        EverholdError as EverholdError,
        InDoubt as InDoubt,
        Misuse as Misuse,
        NotFound as NotFound,
        Overloaded as Overloaded,
        Partial as Partial,
        Refused as Refused,
        TooLong as TooLong,
        Transient as Transient,
    )
    from everhold.ports.clock import Chance as Chance, Clock as Clock
    from everhold.ports.log import Log as Log
    from everhold.ports.memory import (
        Batch as Batch,
        Capability as Capability,
        Exchange as Exchange,
        Forgotten as Forgotten,
        Found as Found,
        Health as Health,
        Job as Job,
        MemoryProvider as MemoryProvider,
        Note as Note,
        Query as Query,
        Retraction as Retraction,
        Scope as Scope,
        Switch as Switch,
        Utterance as Utterance,
    )
    from everhold.ports.model import (
        Answer as Answer,
        Message as Message,
        Model as Model,
        Request as Request,
        ToolSpec as ToolSpec,
    )
    from everhold.ports.platform import (
        Accept as Accept,
        Delivery as Delivery,
        Drafting as Drafting,
        Incoming as Incoming,
        Outgoing as Outgoing,
        Platform as Platform,
        PlatformOffset as PlatformOffset,
        Verdict as Verdict,
    )
    from everhold.ports.plugin import Context as Context
    from everhold.ports.tool import (
        Effect as Effect,
        Result as Result,
        Saying as Saying,
        Tool as Tool,
        ToolContext as ToolContext,
    )

__all__ = ["__version__", *_HOME_OF]  # noqa: PLE0604  # names all the same


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'everhold' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
