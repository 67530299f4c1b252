"""Goals of red-teaming: harmless ones that ship with the package, or those of files."""
