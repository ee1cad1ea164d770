"""The application: the command line and, above it, the window."""
