"""`python -m headrace_operator` runs the operator."""

from headrace_operator.main import main

main()
