"""Discord: a bot that listens at the gateway."""
