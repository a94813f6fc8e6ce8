"""Ports of sandboxes that people open: their names and links, who may, and the connections to the programs behind."""
