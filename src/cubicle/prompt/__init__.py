"""What a chat is given: the system prompt, skills, tokens of its user, and the files that are put in its sandbox."""
