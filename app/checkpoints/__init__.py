"""From MODEL on the command line to a checkpoint directory on this machine's disk."""
