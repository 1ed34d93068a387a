"""Manual pages and shell completion of both commands, from the definitions that `--help` prints.

roff         the language of manual pages
pages        the pages greenstalk-server(1) and greenstalkctl(1)
completion   scripts for bash, zsh and fish
"""
