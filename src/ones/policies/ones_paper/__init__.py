"""The scheduler of the SC'21 paper, and what its authors' prototype did; see docs/paper.md."""
