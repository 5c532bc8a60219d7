"""The keepers of the log. Each is a room of its own and answers to `ports/store.py` alone."""
