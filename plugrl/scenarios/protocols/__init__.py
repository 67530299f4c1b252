"""The built-in protocols of the kind ``protocol``, one file each."""
