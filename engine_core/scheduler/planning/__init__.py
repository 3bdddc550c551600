"""What the next step computes: admission, rows, blocks and drafts."""
