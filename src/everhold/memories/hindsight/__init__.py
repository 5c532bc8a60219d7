"""Hindsight as a memory: banks, documents and operations. No other package uses these terms."""
