"""NVIDIA GPUs: what NVML says of them, which may be used, who leases them, and what a build of torch needs of them."""
