"""The five tools: they know a machine and the rules; not MCP, not HTTP."""
