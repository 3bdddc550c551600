"""The worker on a CPU: loading, inputs, the runner, which kernels compute."""
