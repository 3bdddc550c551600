"""The RPCs: convert, call, convert. One module per service."""
