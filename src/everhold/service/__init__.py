"""The gateway as a service: what a service manager is told, and who may change that. The gateway itself knows none."""
