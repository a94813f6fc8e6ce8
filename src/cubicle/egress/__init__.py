"""The egress proxy: the one way out of a sandbox.

A sandbox has no network. Its guest listens on a port of its loopback and relays each caller to the service over the
connection that is there anyway; the proxy reads what the caller wants (a proxy request of HTTP, or SOCKS5), looks the
name up, asks the policy about every address, and dials the very address that it asked about.

Nothing here decides what is allowed (`egress/policy.py` does), and nothing reads a byte from a sandbox that is not
bounded first.
"""
