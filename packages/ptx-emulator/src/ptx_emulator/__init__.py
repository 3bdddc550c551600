"""Runs PTX, the code that Triton hands to the assembler, on a CPU: an emulator of one GPU program at a time.

What Triton's interpreter cannot show is what this is for: copies that land only at their wait, shared memory
that two threads race for, addresses outside of an allocation, registers that nothing has written, and the
order in which tensor cores add. It knows nothing of pagewire: numpy, and Triton for `launch` alone.
"""
