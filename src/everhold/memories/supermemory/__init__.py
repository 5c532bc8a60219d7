"""Supermemory as a memory: documents in namespaces. The only room that knows the word."""
