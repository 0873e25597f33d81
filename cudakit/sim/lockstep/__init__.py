"""Execution: lanes in lockstep, their registers, memory and control flow."""
