"""What a load test sends requests to: our own gRPC API, or any service with the OpenAI API over HTTP."""
