"""Everything about hermes-agent, up to its version 0.19.0: reading its home, importing it, checking it, running its
plug-ins.

The format of its files was determined from the files and not from its code. Columns are looked up, because any version
of its schema up to 22 may occur.
"""
