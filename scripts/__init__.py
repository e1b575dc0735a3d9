"""The commands behind `make demo` and `make test`; nothing in here is part of the installed pack."""
