"""PTX as text: tokens, declarations, instructions and their modifiers."""
