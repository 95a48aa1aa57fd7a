"""How the ranks of one engine speak to each other: NCCL on CUDA, gloo and shared memory on CPUs."""
