"""The lifetime model of ``vm``: how much longer VMs live, where the cluster's own lives say so."""
