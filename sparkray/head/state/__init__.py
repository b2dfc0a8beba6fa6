"""The head's tables and machines.  Pure: time comes in, effects go out."""
