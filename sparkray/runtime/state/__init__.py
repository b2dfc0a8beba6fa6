"""The runtime's decisions: plain fields changed by plain functions, free of I/O."""
