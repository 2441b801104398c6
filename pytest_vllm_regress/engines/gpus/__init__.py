"""NVIDIA GPUs: what NVML reports, which devices are visible, leases, and compatibility with builds
of torch."""
