"""Carries out chat commands as operations of their own."""
