"""dsv41c compiles DeepSeek-V4.1-Flash, and any config of its architecture, to a plan that a small runtime serves."""
