"""The HTTP API, the OpenAI-compatible routes, and the console's files. It calls the objects of `admin`."""
