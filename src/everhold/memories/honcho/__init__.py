"""Honcho as a memory: peers, sessions, messages and conclusions. No other package uses these terms."""
