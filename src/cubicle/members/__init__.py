"""Several processes that are one service: which of them owns a chat, and how the others reach it (docs/replicas.md)."""
