"""Adapters (LoRA): what the worker holds of them, and the names by which requests find them."""
