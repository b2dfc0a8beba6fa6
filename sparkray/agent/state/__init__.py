"""Decisions of the agent over plain data: no sockets, no clock of their own.  Pure."""
