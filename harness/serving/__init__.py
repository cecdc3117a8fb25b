"""Model servers: what a card says of one, how it is started, what it is, and whether it repeats itself."""
