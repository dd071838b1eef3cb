"""Importers: one module a trace format, each from decoded lines to rows."""
