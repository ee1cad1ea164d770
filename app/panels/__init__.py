"""The window's docks."""
