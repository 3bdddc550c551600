"""Waiting requests: the queue protocol, first come first served, and fair shares among tenants."""
