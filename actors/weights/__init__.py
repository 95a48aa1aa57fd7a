"""The weights actor: what every engine of a machine would load is loaded once, and mapped by them."""
