"""From what an answer must look like to a grammar in llguidance's notation.

answer.py            a whole answer, and what is wrong with its tools
calls.py             calls in the model's own format
argument_values.py   their arguments, where they are not JSON
notation.py          each format of StructuredOutput
lark.py              rules, terminals and special tokens
judge.py             what is wrong with a grammar, and where
"""
