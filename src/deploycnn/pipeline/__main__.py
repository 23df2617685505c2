"""`python -m deploycnn.pipeline`."""

from deploycnn.pipeline.cli import main

main()
