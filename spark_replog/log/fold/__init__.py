"""The folds of decided entries: topics, offsets, leader epochs, producers, groups, quotas. Pure."""
