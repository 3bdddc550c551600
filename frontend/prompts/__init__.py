"""Prompts to token ids: in threads, and in processes that can be killed."""
