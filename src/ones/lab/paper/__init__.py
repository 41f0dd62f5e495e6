"""The paper's evaluation, rebuilt: every figure and table of it, beside what its text reports."""
