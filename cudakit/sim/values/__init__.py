"""Arithmetic of instructions: functions of numpy arrays that hold one value per lane."""
