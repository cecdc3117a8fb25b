"""Computes things from records. Reads nothing but records; never runs a model or a sandbox."""
