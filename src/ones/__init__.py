"""ONES: shares a group of GPUs among training jobs by choosing their sizes and batches online."""

__version__ = "0.1.0"

__all__ = ["__version__"]
