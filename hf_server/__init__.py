"""A standalone server for HuggingFace models: `python -m hf_server --help`."""

__version__ = "1.0.0"
