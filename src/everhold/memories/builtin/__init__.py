"""The built-in memory: an index over the log, and recall that needs no service and no model call."""

from everhold.memories.builtin.embedding_backfill import run_embedding_backfill
from everhold.memories.builtin.index import MemoryIndex
from everhold.memories.builtin.provider import BuiltinMemory
from everhold.memories.builtin.unindexed import IndexHit

__all__ = ["BuiltinMemory", "IndexHit", "MemoryIndex", "run_embedding_backfill"]
