"""The Open Inference Protocol: its service, and the messages that it reads and writes."""
