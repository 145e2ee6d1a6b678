"""What `doctor` looks at: each check gives findings and never raises for what it finds."""
