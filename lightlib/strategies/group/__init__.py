"""The process group: rendezvous, collectives, consistency of ranks."""
