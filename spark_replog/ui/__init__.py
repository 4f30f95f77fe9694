"""The console in the browser (`replog ui`): shows the data of health and monitor, on this machine. Writes nothing."""
