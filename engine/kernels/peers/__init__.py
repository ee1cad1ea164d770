"""Attention of other libraries, to race against."""
