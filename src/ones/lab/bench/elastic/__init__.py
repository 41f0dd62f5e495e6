"""What elastic training costs: pauses of a rescale, and steps while nothing changes."""
