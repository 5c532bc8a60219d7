"""Fake chat platforms on loopback, with state and faults, for the vendors' own clients."""
