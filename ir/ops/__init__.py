"""The ops of dsv41 programs, each with signature and verifier, shape rule, effect on state, cost rule, reference."""
