"""Memory services on loopback, as their own clients know them: each keeps what reaches it, and can fail.

They speak the recorded wire formats to the unmodified SDKs, and need nothing but the standard library.
"""
