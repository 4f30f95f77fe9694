"""What decided entries mean: topics, offsets, leader epochs, producers, groups, quotas. Pure."""
