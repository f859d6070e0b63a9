"""Workers: claim attempts, run them on the slots of this machine, and end them in the ledger."""
