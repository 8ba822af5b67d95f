"""The speed suite: workloads, the systems that run them, and how they are measured and compared."""
