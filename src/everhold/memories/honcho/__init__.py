"""Honcho as a memory: peers, sessions, messages and conclusions. The only room that knows the word."""
