"""Families that norm after a part, around it, or once for both parts of a block."""
