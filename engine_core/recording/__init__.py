"""Record and replay: what the scheduler was told and decided, in a file; docs/scheduling.md."""
