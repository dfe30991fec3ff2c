"""Reference kernels: the custom ops that no compiled kernel covers, one file each; `registry` lists them."""
