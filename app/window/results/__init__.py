"""What the window knows of a run: its data, the tables over it, and the log."""
