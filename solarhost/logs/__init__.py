"""Log files of child processes as numbered, redacted lines."""
