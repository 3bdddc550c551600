"""Parts of Gemma 4 that no other family has."""
