"""Elastic training in loops of other libraries: Hugging Face Trainer, Accelerate, Lightning.

Each module imports its library, and belongs to the training library: a script imports it, and it
imports nothing of the scheduler.
"""
