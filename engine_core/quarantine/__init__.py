"""Requests that may have killed a worker or an engine core: found, isolated, ended alone."""
