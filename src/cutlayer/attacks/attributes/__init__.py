"""What releases tell of a text beside its words: its author's attributes, its entities, its length."""
