"""The host: starting processes, proof of life, CPU cores and control groups."""
