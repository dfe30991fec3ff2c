"""The ops of dsv41 programs; each has a signature with verifier, shape rule, effect on state, cost rule and reference."""
