"""Code in the server, the supervisor and the process of a program; standard library only."""
