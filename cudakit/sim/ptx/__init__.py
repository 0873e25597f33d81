"""PTX: tokens, declarations, instructions and their modifiers."""
