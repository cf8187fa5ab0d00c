"""What a customer can copy of the vendor's blocks."""
