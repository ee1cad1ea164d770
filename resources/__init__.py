"""What ships with FlashScope beside code: sample tensors, and pictures for the README."""
