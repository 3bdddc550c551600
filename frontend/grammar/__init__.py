"""From the structured output that a client requests to a grammar in llguidance's notation.

notation.py          each format
structural_tags.py   free text with structures in it
special_tokens.py    texts that are tokens of their own
judge.py             what is wrong with a grammar, and where
cache.py             grammars that have been judged
"""
