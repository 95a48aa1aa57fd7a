"""The app's way to the engines (interface being built)."""
