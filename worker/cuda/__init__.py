"""The worker on a CUDA device: nothing here waits for it, except where a name says so."""
