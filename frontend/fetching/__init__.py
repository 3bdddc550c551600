"""Media by URL: which URLs are fetched, and how. Off unless --media-hosts names hosts."""
