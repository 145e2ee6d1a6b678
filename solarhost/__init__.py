"""Solar Host: the node agent that runs model servers on one machine."""

__version__ = "0.1.0"
