"""Results that a repository keeps: one row for every finished run that a study counts."""
