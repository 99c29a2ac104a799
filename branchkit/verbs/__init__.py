"""The verbs of the command line: each takes parsed options, calls the API, answers, says its code.

``cli`` holds the table of them, ``arguments`` what each takes.
"""
