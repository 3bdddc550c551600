"""Products of linear layers in Triton, whose sums have one order."""
