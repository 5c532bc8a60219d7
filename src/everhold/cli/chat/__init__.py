"""Talking in a terminal. `terminal` is what is seen and typed, `talk` is the conversation behind it."""
