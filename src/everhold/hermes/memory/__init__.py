"""Memory plug-ins written for hermes-agent, unmodified, each in a host process of its own."""
