"""deploycnn: take a CNN classifier from training to the compiled artifact that should be shipped, and prove the choice."""

__version__ = "0.1.0"
