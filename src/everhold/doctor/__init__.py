"""Looks at a home and says what is wrong with it, with a remedy each: our own, or one of hermes-agent's."""
