"""Finds and repairs damage in a hermes-agent store."""
