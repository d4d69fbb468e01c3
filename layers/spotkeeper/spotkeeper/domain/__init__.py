"""What the product decides: values and pure functions, standard library only."""
