"""Benchmarks by topic. A topic with several modules has its entry point in `benchmark`."""
