"""What every room stands on; it imports nothing of accord but itself."""
