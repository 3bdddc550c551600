"""The host: starting processes, hang detection, CPU cores, control groups."""
