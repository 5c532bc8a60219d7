"""Run the gateway as a service: descriptions for service managers, and their installation."""
