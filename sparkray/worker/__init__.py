"""Worker processes: forked from a zygote, they run user code for whoever leases them."""
