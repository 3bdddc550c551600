"""Products with weights of bfloat16 in 12 bits each, without loss."""
