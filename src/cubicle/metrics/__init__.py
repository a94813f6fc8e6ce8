"""What the service counts and measures of itself, for Prometheus."""
