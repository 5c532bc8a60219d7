"""Discord: a bot that receives through Discord's gateway."""
