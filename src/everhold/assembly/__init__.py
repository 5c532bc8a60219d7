"""Turns settings into objects: agents, platform accounts, memory providers, plug-in tools."""
