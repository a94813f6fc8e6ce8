"""Sandboxes as containers of a Docker engine (or of Podman's socket), here or on another machine."""
