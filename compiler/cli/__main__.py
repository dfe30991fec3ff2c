"""`python -m dsv41c.compiler.cli`, where the console script is not on the path."""

from dsv41c.compiler.cli import main

main()
