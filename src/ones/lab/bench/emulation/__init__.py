"""A real controller with emulated workers that speak the worker protocol and do not train."""
