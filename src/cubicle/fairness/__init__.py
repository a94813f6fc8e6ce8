"""Fair shares between tenants and their chats: of the event loop's time, and of slots for long work."""
