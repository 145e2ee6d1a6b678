"""Container pipelines: definitions, store, executor, step logs."""
