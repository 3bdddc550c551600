"""The gRPC server around the servicers: sockets, TLS, errors, write timeouts, drain and shutdown."""
