"""The commands: they parse, check, and call down."""
