"""Who may come in. Everything here but interceptor.py knows nothing of gRPC's server."""
