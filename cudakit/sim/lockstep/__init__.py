"""Execution: lanes in step, their registers, memory and control flow."""
