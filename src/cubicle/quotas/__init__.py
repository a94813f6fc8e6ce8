"""What tenants and users may use of the service, and what is refused before the host is short."""
