"""Slack: an app that listens through a socket of its own."""
