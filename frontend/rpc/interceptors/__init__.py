"""Interceptors of every RPC: authentication, decoding of messages, metrics."""
