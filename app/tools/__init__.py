"""Tools of other servers (the Model Context Protocol): who may be called, sessions with them, and what they answer.

app/tools/transport.py and app/tools/session.py import `mcp`, which takes a second; the rest of the server does not.
"""
