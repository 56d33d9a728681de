"""Shared by every room: errors, checks of arguments, limits on input, files, locks, progress."""
