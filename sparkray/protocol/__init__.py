"""What travels between sparkray processes, as classes and as bytes.  Pure."""
