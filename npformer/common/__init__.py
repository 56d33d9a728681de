"""Shared by all packages: errors, checks of arguments, limits on input, files, locks, progress."""
