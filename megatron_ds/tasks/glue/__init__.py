"""The tasks of GLUE (https://gluebenchmark.com): their files, labels and encoding."""
