"""The console in the browser (`replog ui`): what health and monitor know, on this machine only. Writes nothing."""
