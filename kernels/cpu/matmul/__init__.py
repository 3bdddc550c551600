"""Matrix products with packed weights: 16 bits, 12 bits without loss, 8 bits."""
