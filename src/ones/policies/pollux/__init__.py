"""Pollux (Qiao et al., OSDI'21): batches and GPUs together, by a genetic search on goodput."""
