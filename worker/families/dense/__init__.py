"""Families that norm before each part of a block."""
