"""From what an answer must look like to a grammar in llguidance's notation.

answer_judge.py      a whole answer, and what is wrong with its tools
calls/               reasoning and calls
lark.py              rules and terminals
notation.py          each format
structural_tags.py   free text with structures in it
special_tokens.py    texts that are tokens of their own
judge.py             what is wrong with a grammar, and where
cache.py             grammars that have been judged
"""
