"""Calls of operators and of frontends about the core: lists, explanations, aborts by id."""
