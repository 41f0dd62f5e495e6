"""Read models for the API, the page and the CLI: jobs, their histories, the cluster. Any thread
may read them."""
