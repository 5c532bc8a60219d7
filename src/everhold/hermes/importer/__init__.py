"""Imports a hermes-agent home: conversations into the log, memory files as facts, settings into config.yaml."""
