"""What the product needs from its surroundings: files, packages, time limits. Decides nothing about conversations."""
