"""`ones paper`: each figure and table of the paper's evaluation, with the numbers of its text."""
