"""Chat platforms on loopback: stateful, for the vendors' own clients, with a switch for whatever goes wrong."""
