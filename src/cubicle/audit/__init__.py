"""The audit log: who did what in the whole service, in lines that are chained by hash. docs/audit.md."""
