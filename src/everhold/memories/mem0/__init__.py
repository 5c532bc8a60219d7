"""Mem0 as a memory: its platform, or its library in this process. The only room that knows the word."""
