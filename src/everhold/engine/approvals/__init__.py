"""Durable approvals: a call that needs a person's permission is asked about, answered from anywhere, and run once."""
