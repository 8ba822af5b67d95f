"""A method and a noise for rayfl."""
