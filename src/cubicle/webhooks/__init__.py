"""Webhooks by the Standard Webhooks scheme: events in a queue on disk, signed and delivered with retries."""
