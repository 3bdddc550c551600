"""Mixtures of experts as a block's feed-forward part."""
