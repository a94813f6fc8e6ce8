"""Machines, the driver contract and the fleet. Knows no MCP, no HTTP and no particular driver."""
