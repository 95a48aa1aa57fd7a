"""How models write thoughts and tool calls, one file per dialect. Pure; chosen once, when the server starts."""
