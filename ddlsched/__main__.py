"""``python -m ddlsched`` is the command line, where scripts of packages are not on the path."""

from ddlsched.cli import main

main()
