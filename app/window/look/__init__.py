"""Colours, icons and numbers as the person's system has them."""
