"""HTTP: the page, the API, and routes that look like a well-known one. A mouth for control.py; it decides nothing."""
