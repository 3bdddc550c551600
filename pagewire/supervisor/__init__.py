"""`pagewire serve`: starts every process of a service, restarts what dies or hangs."""
