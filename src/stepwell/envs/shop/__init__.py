"""Shop: find, choose and buy the product that an instruction asks for."""
