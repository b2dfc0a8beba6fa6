"""The command line, and the program that runs a node."""
