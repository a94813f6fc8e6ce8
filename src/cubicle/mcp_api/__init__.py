"""The MCP endpoint. No type of the MCP SDK leaves this folder."""
