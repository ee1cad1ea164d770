"""Attention and its gradients in float64: the judge of every kernel."""
