"""The guest's client: a live sandbox that commands, files and connections are asked of."""
