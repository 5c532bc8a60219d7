"""Supermemory as a memory: documents in namespaces. No other package uses these terms."""
