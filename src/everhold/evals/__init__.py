"""How good are the summaries? Conversations with questions are replayed through the real flows, folded, and scored.

The room stands above `testing`, whose house in virtual time it lives in, and below the command line that shows what it
finds. Nothing in here changes a home: every replay has a store of its own that is thrown away.
"""
