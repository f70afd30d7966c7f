"""Stands before the real one for the processes that tests start: kio imports it wherever it is installed.

That is two fifths of what a broker imports, and no deployed one has it.
"""

raise ImportError("this process runs as it does where nothing is installed for tests")
