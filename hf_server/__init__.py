"""Model server for HuggingFace checkpoints; stands alone, imports nothing of solarhost."""
