"""What the sampler is made of: one feature per file, each with its own state and the same verbs.

add_row, fork_row, remove_row   a row begins, begins as a copy, ends
apply                           change what this step's rows choose from
record                          the rows' new tokens (features that look back at the output)
"""
