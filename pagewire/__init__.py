"""pagewire: large language models served over gRPC."""

__version__ = "2026.11.0"
