"""Worker processes: forked from a zygote, they run user code for who leases them."""
