"""Memory services on loopback, as their official clients know them: each keeps what reaches it, and can fail in every way.

They speak the recorded wire formats to the unmodified SDKs, and need nothing but the standard library.
"""
