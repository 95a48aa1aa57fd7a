"""scripts/bench without a command: trillm and its peers side by side, in a table and in plots."""
