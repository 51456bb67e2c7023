"""From a config to a plan: the fleet and its links, cuts once, and what each round gives whom. No torch."""
