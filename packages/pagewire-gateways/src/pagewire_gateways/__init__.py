"""Foreign gRPC services of a pagewire frontend: vLLM's engine, the Open Inference Protocol, ORCA."""
