"""Hindsight as a memory: banks, documents and operations. The only room that knows the word."""
