"""What is asked for: options, presets, sweeps and the plan they make, with what it will cost."""
