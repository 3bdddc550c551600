"""Limits of bad words: frontends report violations to clients, and the engine core checks again. A worker
keeps a table with a place for each token of each word of each row, and reads all of it in every step."""

MAX_BAD_WORDS = 128
MAX_BAD_SPELLINGS = 3 * MAX_BAD_WORDS
"""What an engine core is sent: each word at the beginning of a text, after a space, and after other text."""
MAX_BAD_WORD_TOKENS = 128
"""Tokens of one spelling."""
