"""Generated: the messages between our own processes."""
