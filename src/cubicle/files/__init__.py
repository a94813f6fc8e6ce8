"""A chat's files: uploads, reading, listing, archives."""
