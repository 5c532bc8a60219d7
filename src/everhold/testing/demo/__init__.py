"""Fills a home with a realistic month, so that every page of the console has something to show."""
