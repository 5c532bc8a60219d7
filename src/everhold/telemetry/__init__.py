"""Log lines and metrics: rendering, redaction, and the names of events."""
