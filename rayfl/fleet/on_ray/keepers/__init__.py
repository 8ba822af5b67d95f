"""Processes that call actors, and own what these leave, in the coordinator's stead. Nobody enters
where there are none of them (`resources.keepers`)."""
