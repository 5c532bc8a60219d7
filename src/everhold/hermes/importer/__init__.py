"""Brings another agent's past in: conversations into the log, memory files as facts, settings into config.yaml."""
