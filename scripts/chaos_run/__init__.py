"""Injures a running server and watches what its clients see.

Run by scripts/chaos and tests/end_to_end/test_chaos.py.
"""
