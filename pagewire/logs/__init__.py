"""What processes log: one format, the fields of the request that a line belongs to, and what is kept out."""
