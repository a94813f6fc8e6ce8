"""The MCP door. No type of the MCP SDK leaves this folder."""
