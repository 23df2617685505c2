"""The order of the stages and the command line: the only place that knows every stage and every backend."""
