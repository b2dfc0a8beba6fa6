"""Moves messages between processes: task channels and gRPC, and proof of the token."""
