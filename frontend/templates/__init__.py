"""Chat templates of checkpoints, rendered within limits."""
