"""The Socket.IO link to solar-control."""
