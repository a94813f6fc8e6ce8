"""The driver contract and the fleet: which sandbox a chat has, and how long. Knows no MCP, no HTTP and no driver."""
