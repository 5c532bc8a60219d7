"""Everhold runs long-lived agents behind chat platforms and remembers for them.

These are the names that users and plug-in authors may import; everything else may change. They are loaded on first use,
so that `import everhold` is quick and imports no dependency.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

__version__ = "0.1.0.dev0"

_NAMES_BY_MODULE: Final = {
    "everhold.core.entries": "Attachment ChatLocation ModelUsage Stamp TextPiece ToolCall",
    "everhold.core.policy": "ToolReach",
    "everhold.core.roles": "ToolAccess",
    "everhold.errors": (
        "Conflict EverholdError InDoubt InvalidRequest NotFound Overloaded PartiallyDone Refused TooLong Transient"
    ),
    "everhold.ports.clock": "Clock RandomSource",
    "everhold.ports.log": "EventLogger",
    "everhold.ports.memory": (
        "ErasureState ErasureTarget Exchange JobResult MemoryBatch MemoryCapability MemoryHit MemoryNote "
        "MemoryProvider MemoryQuery MemoryRetraction MemoryScope MemoryUtterance ProviderDeletion ProviderHealth "
        "SessionSwitch"
    ),
    "everhold.ports.model": "Model ModelMessage ModelRequest ModelResponse ToolSpec",
    "everhold.ports.platform": (
        "AcceptMessage AcceptResult DeliveryGuarantee IncomingMessage OutgoingMessage Platform PlatformOffset "
        "SupportsDrafts"
    ),
    "everhold.ports.plugin": "PluginContext",
    "everhold.ports.tool": "SendRequest Tool ToolContext ToolEffect ToolFile ToolResult",
}
_MODULE_BY_NAME: Final = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

if TYPE_CHECKING:  # the same names for type checkers
    from everhold.core.entries import (
        Attachment as Attachment,
        ChatLocation as ChatLocation,
        ModelUsage as ModelUsage,
        Stamp as Stamp,
        TextPiece as TextPiece,
        ToolCall as ToolCall,
    )
    from everhold.core.policy import ToolReach as ToolReach
    from everhold.core.roles import ToolAccess as ToolAccess
    from everhold.errors import (
        Conflict as Conflict,
        EverholdError as EverholdError,
        InDoubt as InDoubt,
        InvalidRequest as InvalidRequest,
        NotFound as NotFound,
        Overloaded as Overloaded,
        PartiallyDone as PartiallyDone,
        Refused as Refused,
        TooLong as TooLong,
        Transient as Transient,
    )
    from everhold.ports.clock import Clock as Clock, RandomSource as RandomSource
    from everhold.ports.log import EventLogger as EventLogger
    from everhold.ports.memory import (
        ErasureState as ErasureState,
        ErasureTarget as ErasureTarget,
        Exchange as Exchange,
        JobResult as JobResult,
        MemoryBatch as MemoryBatch,
        MemoryCapability as MemoryCapability,
        MemoryHit as MemoryHit,
        MemoryNote as MemoryNote,
        MemoryProvider as MemoryProvider,
        MemoryQuery as MemoryQuery,
        MemoryRetraction as MemoryRetraction,
        MemoryScope as MemoryScope,
        MemoryUtterance as MemoryUtterance,
        ProviderDeletion as ProviderDeletion,
        ProviderHealth as ProviderHealth,
        SessionSwitch as SessionSwitch,
    )
    from everhold.ports.model import (
        Model as Model,
        ModelMessage as ModelMessage,
        ModelRequest as ModelRequest,
        ModelResponse as ModelResponse,
        ToolSpec as ToolSpec,
    )
    from everhold.ports.platform import (
        AcceptMessage as AcceptMessage,
        AcceptResult as AcceptResult,
        DeliveryGuarantee as DeliveryGuarantee,
        IncomingMessage as IncomingMessage,
        OutgoingMessage as OutgoingMessage,
        Platform as Platform,
        PlatformOffset as PlatformOffset,
        SupportsDrafts as SupportsDrafts,
    )
    from everhold.ports.plugin import PluginContext as PluginContext
    from everhold.ports.tool import (
        SendRequest as SendRequest,
        Tool as Tool,
        ToolContext as ToolContext,
        ToolEffect as ToolEffect,
        ToolFile as ToolFile,
        ToolResult as ToolResult,
    )

__all__ = ["__version__", *_MODULE_BY_NAME]  # noqa: PLE0604  # names all the same


def __getattr__(name: str) -> object:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'everhold' has no attribute {name!r}")
    value: object = getattr(import_module(_MODULE_BY_NAME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
