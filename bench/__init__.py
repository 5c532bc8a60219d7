"""How fast everhold is, as ratios measured in one run beside whoever does the same work."""
