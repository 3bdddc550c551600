"""Messages of frontends: which of them there are, and what becomes of what they send."""
