"""One object per stream that a client reads: generation, multiplexing, continuation, scoring."""
