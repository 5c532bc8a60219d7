"""Handles chat commands, each as a separate operation."""
