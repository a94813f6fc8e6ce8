"""What belongs to a chat as a whole: its activity, its signed links, its terminal, its removal."""
