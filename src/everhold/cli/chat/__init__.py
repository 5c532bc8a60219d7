"""Chat in a terminal. `terminal` handles input and output, `conversation` sends messages and follows the session."""
