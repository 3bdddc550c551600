"""Load tests of a running service: workloads, arrivals, targets, figures, reports (docs/benchmarking.md)."""
