"""Kill tests with real processes. The remote services run outside the killed process and record what really happened.

`python -m everhold.testing.kill` kills a process at random moments or at every named commit, and prints the result.
With `--web` it kills the whole program, which serves HTTP callers and uses a faulty model server.
"""
