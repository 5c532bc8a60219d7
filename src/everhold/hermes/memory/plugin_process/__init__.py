"""What runs in the plug-in's own interpreter: nothing in here may import everhold, or what is not part of Python."""
