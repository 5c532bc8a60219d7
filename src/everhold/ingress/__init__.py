"""Everything up to the accept commit: admission, pairing, DM owners, chat aliases, schedules."""
