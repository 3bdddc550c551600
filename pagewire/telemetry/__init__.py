"""What every process says of itself: metrics, health over HTTP, traces."""
