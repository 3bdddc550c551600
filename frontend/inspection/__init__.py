"""What the service is doing, for operators and tenants. Independent of the transport."""
