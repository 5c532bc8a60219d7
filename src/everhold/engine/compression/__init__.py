"""Replaces old operations in the context by a summary."""
