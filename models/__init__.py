"""The network in plain PyTorch: config, checkpoint reader, exact quantizers, and the modules of the report."""
