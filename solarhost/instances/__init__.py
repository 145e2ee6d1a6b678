"""What an instance is, its state machine, its store and its supervision."""
