"""The attention problem: its shapes and rules, its masks, and where its tensors come from."""
