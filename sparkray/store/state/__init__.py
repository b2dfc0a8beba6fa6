"""The decisions of the store, without I/O."""
