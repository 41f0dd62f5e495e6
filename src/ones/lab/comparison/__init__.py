"""`ones compare`: many simulated runs, their statistics, and the page that shows them."""
