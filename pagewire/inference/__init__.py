"""Generated: the Open Inference Protocol."""
