"""Which thread attends to what, and what it prefetches."""
