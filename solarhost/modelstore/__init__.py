"""Weights on disk: source URIs, manifest, pulls, file selection."""
