"""Process 1: the gRPC server. Tokens in, text out. Never imports torch."""
