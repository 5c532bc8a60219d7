"""Telegram through the Bot API. The vendor's library is only a typed client; everhold has its own receive loop."""
