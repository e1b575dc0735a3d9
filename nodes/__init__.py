"""Thin V3 nodes: schema, tooltips, and one call into the runtime."""
