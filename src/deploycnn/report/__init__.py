"""What a record says, one exporter per file. Reads records only; works without any tensor library."""
