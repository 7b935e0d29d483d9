"""Every concrete policy, one file each, found through the same door as a user's own."""
