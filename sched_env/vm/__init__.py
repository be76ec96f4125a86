"""vm: virtual machines on servers of two NUMA halves (VMAgent's SchedGym, working)."""
