"""Loads a plan and serves requests from it: executors, kernels, caches, engine. Imports no part of the compiler."""
