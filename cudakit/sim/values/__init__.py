"""What instructions compute: functions of numpy arrays that hold one value per lane."""
