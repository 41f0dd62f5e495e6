"""What each number of GPUs is worth to each job, as a problem for the search."""
