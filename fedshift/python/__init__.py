"""What `import fedshift` needs besides the functions of ``fedshift.api``: keys, runs, models and tables as objects."""
