"""What several commands share: connecting, sampling flags, Ctrl-C, and hints about what is not installed."""
