"""Matrix: one account at a homeserver."""
