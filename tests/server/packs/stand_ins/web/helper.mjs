// A file of another pack.
