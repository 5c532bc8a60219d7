"""One module per command, each with `run(args, screen) -> exit code`."""
