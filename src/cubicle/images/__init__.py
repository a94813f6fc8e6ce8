"""Images that sandboxes stand on: kept in IMAGE_DIR, built from the recipe, exported to an engine."""
