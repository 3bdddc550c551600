"""Floats of 4 bits, e2m1: a sign, 2 bits of exponent and 1 of fraction, as MXFP4 has them.

    code       0  1    2  3    4  5  6  7        code + 8: the same value with a minus sign
    value      0  0.5  1  1.5  2  3  4  6

All values are halves of integers. A product with weights in groups computes with the integer 2 * value + 12,
which is 0 .. 24, for each code, with a zero point of 12 and half of the group's scale.
"""

MIDDLE = 12
"""The integer that stands for 0."""
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)
INTEGERS = tuple(MIDDLE + value for value in _DOUBLED) + tuple(MIDDLE - value for value in _DOUBLED)
"""By code."""
