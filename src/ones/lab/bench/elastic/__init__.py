"""Benchmarks of elastic training: the pause of a rescale, and the overhead of a normal step."""
