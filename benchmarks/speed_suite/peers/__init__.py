"""Other simulators, each run by the interpreter of an environment of its own."""
