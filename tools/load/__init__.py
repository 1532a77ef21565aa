"""What tools/soak and tools/chaos share: a server as a process, and clients that ask it well and badly."""
