"""What a step gives each request, and what requests wait for."""
