"""Score summaries: replay conversations through the real engine, compress them, and check which facts remain.

The package uses the in-process gateway of `testing`, which runs in virtual time. The command line prints the scores.
No home is changed, because every replay has a temporary store.
"""
