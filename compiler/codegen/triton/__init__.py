"""Triton kernels: one source a family, compiled ahead of time for every GPU target, on machines without a GPU.

targets     what the targets differ in, as data
families    what a kernel is to the compiler, and which ones a model needs
kernels/    the families' sources
aot         kernels to binaries, in parallel and through the cache
worker      the processes that `aot` compiles in
table       the table of docs/kernels.md
"""
