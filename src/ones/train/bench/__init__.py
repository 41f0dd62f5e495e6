"""Training scripts of benchmarks: the laboratory itself does not import torch."""
