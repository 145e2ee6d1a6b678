"""The only part that talks to Docker."""
