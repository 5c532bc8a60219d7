"""Traces: spans from the entries of the log, and their export to an OpenTelemetry collector."""
