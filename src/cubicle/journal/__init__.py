"""The journal: what was done in each chat, kept on the service's disk in lines that are chained by hash."""
