"""The plain HTTP and WebSocket doors. Every error becomes a problem document in one place."""
