"""From a checkpoint to a plan: trace, import, passes, code generation, artifact, command line."""
