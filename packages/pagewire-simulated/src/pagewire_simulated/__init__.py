"""A worker without a model: tokens from a hash, step times from a formula. docs/simulated.md."""
