"""Telegram through the Bot API. The vendor's library is a typed client here; the loop that receives is our own."""
