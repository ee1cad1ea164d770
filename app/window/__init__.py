"""The desktop window: set-up, charts, results, files and dialogs, with the engine in a process behind it."""
