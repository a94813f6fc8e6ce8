"""What the drivers share."""
