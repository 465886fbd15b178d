"""Reading comprehension with four choices (RACE, https://www.cs.cmu.edu/~glai1/data/race/)."""
