"""One process per cell: compiles, loads, predicts and runs timed blocks there, so that a crash fails its cell only."""
