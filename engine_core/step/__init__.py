"""The contract with the worker: step plans out, step results in, as columns."""
