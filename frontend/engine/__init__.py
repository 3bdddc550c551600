"""The connections to engine cores: discovery, routing, the journal of what is in flight."""
