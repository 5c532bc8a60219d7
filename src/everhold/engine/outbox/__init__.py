"""Delivers committed entries to destinations, in order per session."""
