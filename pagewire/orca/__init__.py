"""Generated: load reports of xDS."""
