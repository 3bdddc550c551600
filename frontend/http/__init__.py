"""HTTP as a transport of the frontend: server, connections, bodies, TLS. Knows nothing of what is served."""
