"""Limits of bad words: frontends report violations to clients, and the engine core checks again. A worker
keeps a table with a place for each token of each word of each row, and reads all of it in every step."""

MAX_BAD_WORDS = 128
MAX_BAD_SPELLINGS = 2 * MAX_BAD_WORDS
"""What an engine core is sent: each word as at the beginning of a text, and as after a space."""
MAX_BAD_WORD_TOKENS = 128
"""Tokens of one spelling."""
