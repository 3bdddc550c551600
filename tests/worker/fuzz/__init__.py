"""Random models of all families, held to transformers and to themselves."""
