"""What the machine has, what is used, and what is promised: telemetry and the reservation ledger."""
