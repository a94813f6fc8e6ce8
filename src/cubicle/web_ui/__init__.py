"""The pages for people, and their built assets."""
