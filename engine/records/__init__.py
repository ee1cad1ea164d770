"""Plans, results and events: the values that a run takes and gives."""
