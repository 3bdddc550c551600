"""How requests travel: channels and credentials, one call or many per stream, recovery of broken streams."""
