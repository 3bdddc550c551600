"""One operation per file. Empty of imports: `transformers` looks for a package of this name."""
