"""Memory plug-ins written for hermes-agent, unmodified, each in its own host process."""
