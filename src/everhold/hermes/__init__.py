"""Another agent's home, hermes-agent's, up to 0.19.0: where its files are and what its rows mean. Reads, never writes.

What is known here was found in its files, not in its code; columns are looked for, since any version up to 22 of its
schema may be met.
"""
