"""Driver-side coordination: controller, replica manager, delayed operations, replica fetcher."""
