"""Hops, client requests and span events put together into calls and turns."""
