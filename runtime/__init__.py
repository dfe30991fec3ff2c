"""Loads a plan and runs it: executors, paged caches, engine. Imports no part of the compiler."""
