"""Real processes, really killed: everything a gateway talks to lives outside it and keeps the truth.

`python -m everhold.testing.kill` kills a process at random moments, or at every named commit, and says what it found;
with `--web` it is the whole program, between callers over HTTP and a model server that is ill.
"""
