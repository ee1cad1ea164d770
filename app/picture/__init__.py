"""A race drawn off screen as a picture."""
