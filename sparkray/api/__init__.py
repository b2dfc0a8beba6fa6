"""What users call: arguments are checked here, then the runtime does the work."""
