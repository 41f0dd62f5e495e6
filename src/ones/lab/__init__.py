"""The laboratory: simulated runs with results, comparisons, benchmarks, the paper's evaluation."""
