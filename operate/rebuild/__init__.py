"""Fill the next generation, promote it, drop a former one."""
