"""The plain HTTP and WebSocket API. Every error becomes a problem document in one place."""
