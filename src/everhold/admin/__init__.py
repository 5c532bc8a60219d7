"""What operators do: inspect and change sessions, audit, memory, erasure, memory files, backups."""
