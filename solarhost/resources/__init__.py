"""What the machine has and who was promised it."""
