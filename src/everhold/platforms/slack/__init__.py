"""Slack: an app that receives through socket mode or the Events API."""
