"""Sandboxes as pods of a cluster. One Lease per chat is its record; nothing is kept on the service's own disk."""
