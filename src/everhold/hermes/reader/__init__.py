"""Reads a hermes-agent home: its database, files, transcripts and log. Never writes to it."""
