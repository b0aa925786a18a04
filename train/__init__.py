"""Training: a recipe and its data become a checkpoint."""
