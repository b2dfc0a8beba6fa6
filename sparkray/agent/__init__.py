"""The node agent: leases workers, keeps the node's objects, tells the head."""
