"""Grammars beside rows: which tokens may follow a row's output.

tokenizer.py   the model's tokens, as llguidance needs them
compiler.py    grammars, compiled once per content, in threads
matcher.py     the state of one row: a function of its grammar and its output
rows.py        the rows that have grammars, and their masks
"""
