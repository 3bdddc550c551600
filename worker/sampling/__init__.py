"""The sampler: rows in rows.py, one processor of logits per file; candidates, filters and the draw are
kernels.ops.sampling.choose.

The methods of a processor:

add_row, fork_row, remove_row   a row begins, begins as a copy, ends
apply                           changes the logits of a step's rows
record                          appends the rows' new tokens, where the processor depends on the output
"""
