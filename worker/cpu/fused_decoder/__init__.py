"""The forward pass of a decoder as one native call."""
