"""Media of prompts, such as images: their data while requests need them, and the worker's encoder cache."""
