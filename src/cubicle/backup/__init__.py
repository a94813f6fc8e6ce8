"""Chats and whole services as one file: export and import of a chat, backup and restore of everything.

What is in such a file was written by a stranger. Names, links and sizes are checked before anything is written, files
of a sandbox are unpacked in the sandbox, and nothing is used of a file whose checksums do not hold.
"""

MARKER = "restoring"
"""In DATA_DIR while a restore is not finished: no service starts there."""
