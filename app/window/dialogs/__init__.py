"""Dialogs: each one file, shown by the window."""
