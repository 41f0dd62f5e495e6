"""Gandiva (OSDI'18): time slicing, migration, growth into idle GPUs, and packing."""
