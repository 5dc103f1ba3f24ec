"""The `tamis` command, one file per subcommand. What is heavy is imported inside functions."""
