"""The CPU's own kernels: C++ in src/, built on first use, and the laid-out weights that they read.

`library` loads them, `structs` mirrors the records that they run, `layout` and `laid_out` prepare the weights. Used by
gpu/models/native_decoder; without a compiler gpu/torch_model computes instead.
"""
