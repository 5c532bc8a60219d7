"""Implementations of `ports/store.py`, each in a package of its own."""
