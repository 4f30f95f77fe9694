"""What is well and what is not, as values: pure, from folds and looks in, for every surface that shows health."""
