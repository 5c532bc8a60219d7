"""Answers messages: claims a session, builds the context, calls the model and tools, commits."""
