"""Memory that is always there: an index over the log, and recall that needs no service and no model call."""

from everhold.memories.builtin.filling import keep_filling
from everhold.memories.builtin.index import Index
from everhold.memories.builtin.provider import Builtin
from everhold.memories.builtin.tail import Hit

__all__ = ["Builtin", "Hit", "Index", "keep_filling"]
