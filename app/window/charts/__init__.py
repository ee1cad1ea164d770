"""The charts of the window and the parts they are made of."""
