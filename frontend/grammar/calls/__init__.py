"""Grammars of answers: reasoning, then calls in the model's own format, free text, or a requested form.

answer.py     a whole answer
calls.py      its calls, out of the writing of their format and the schemas of the tools
arguments.py  the arguments of one call: JSON, tags, or pairs
members.py    what a tool's schema says of each argument
strings.py    strings without JSON's quotes
unquoted.py   values in a notation whose keys have no quotes
"""
