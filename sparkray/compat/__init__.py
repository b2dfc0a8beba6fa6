"""Other systems' names for what sparkray does."""
