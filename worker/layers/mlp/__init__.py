"""Feed-forward layers and their activations."""
