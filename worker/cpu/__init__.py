"""The worker on a CPU: inputs, the runner, which kernels compute."""
