"""Memories as destinations and as sources of recall: deliver, recall, backfill, resend, health."""
