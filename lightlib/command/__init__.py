"""The console command `lightlib`, one file per subcommand."""
