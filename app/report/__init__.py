"""What a run came to, in words, units, columns and marks: shared by window, terminal and picture."""
