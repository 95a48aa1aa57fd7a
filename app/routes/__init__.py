"""One blueprint per group of routes; each is made by a function that is given what it works with."""
