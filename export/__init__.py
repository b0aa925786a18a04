"""Export: a checkpoint becomes artifacts, each proven against its source."""
