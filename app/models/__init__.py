"""What the window knows: the session's data, and tables over it."""
