"""What is special about each model server: command, readiness, log and metrics."""
