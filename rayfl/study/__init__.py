"""Studies: a table of a paper as a base configuration, axes, and the printed figures to put beside
ours."""
