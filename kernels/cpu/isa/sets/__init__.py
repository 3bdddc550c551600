"""What instruction sets have of their own, a file for each."""
