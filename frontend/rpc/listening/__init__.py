"""The listening address of the gRPC server, its options and its certificates."""
