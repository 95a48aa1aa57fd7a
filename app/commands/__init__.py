"""What `trillm` can be told to do: one command per module, named after it. app/cli.py puts them together."""
