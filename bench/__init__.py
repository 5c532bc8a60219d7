"""Benchmarks: everhold compared with other programs that do the same work in the same run."""
