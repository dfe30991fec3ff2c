"""The kernel families, one source each. A module holds its Triton functions and says which kernels a model needs of it.

Rules of all of them: page offsets are int64; loads and stores are masked; -1 is tested before an address is made of it;
running maxima start at a finite value; no warp width is assumed; nothing is allocated. Only what Triton 3.6 to 3.9 and
the interpreter share is used, and arithmetic on bf16 values happens in fp32.
"""
