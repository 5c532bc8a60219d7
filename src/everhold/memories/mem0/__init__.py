"""Mem0 as a memory: its platform, or its library in this process. No other package uses these terms."""
