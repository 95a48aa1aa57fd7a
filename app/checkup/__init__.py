"""What `trillm check` finds: facts of the machine, and what is concluded from them, with a remedy for each problem."""
