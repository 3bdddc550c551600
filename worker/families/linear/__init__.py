"""Families in which most layers keep one state per sequence in place of keys and values."""
