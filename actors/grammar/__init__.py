"""Grammar checkers: processes that build a client's grammar before anything else touches it.

Building is not ours (llguidance) and can recurse until the stack ends, or take memory and time without bound. In a
process of its own that costs one request, and nothing is shared with it but a pipe.
"""
