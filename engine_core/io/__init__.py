"""Sockets, processes and threads around the step loop: frontends, the worker, its hang detector."""
