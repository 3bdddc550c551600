"""tei.v1, the services of text-embeddings-inference."""
