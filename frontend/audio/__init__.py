"""Sounds of prompts: files to log-mel spectrograms, as a model's encoder takes them, and to the tokens that
stand for them.

numpy is imported when the first sound is read, in the prompt process that reads it.
"""
