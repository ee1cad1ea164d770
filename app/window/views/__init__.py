"""The tabs in the window's centre: live, compare and sweep."""
