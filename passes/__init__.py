"""Rewrites from dsv41 IR to dsv41 IR, one pass a file; pipeline.py alone holds their order."""
