"""Small networks in environments: collection, agents and their parts, and the trainers' bases."""
