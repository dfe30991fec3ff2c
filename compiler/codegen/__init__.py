"""Code generators, one folder a target family."""
