"""What is shown: of the jobs now, of a job's past, of the cluster. Read from any thread."""
