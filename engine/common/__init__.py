"""What every layer uses: units, error sentences, and how a running kernel is timed and stopped."""
