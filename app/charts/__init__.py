"""The window's centre: live, compare and sweep."""
