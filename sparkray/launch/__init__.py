"""Nodes on this host: which run here (`discovery`), how to start one (`process`)."""
