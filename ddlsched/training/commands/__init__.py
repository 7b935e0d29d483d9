"""The commands of this room, found by entry point."""
