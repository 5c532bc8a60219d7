"""Fake memory services on loopback that store what they receive and can be made to fail.

They speak the recorded wire formats to the unmodified SDKs, and need only the standard library.
"""
