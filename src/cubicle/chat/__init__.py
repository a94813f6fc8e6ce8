"""What belongs to a chat besides its sandbox: uploads, previews, prompt, skills."""
