"""The code that runs in the plug-in's own interpreter. It may import only the standard library, and not everhold."""
