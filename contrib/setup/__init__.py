"""What `make run` and `make test` need on a fresh machine. Every step may be repeated."""
