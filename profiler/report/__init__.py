"""What the store knows, as data frames, figures and reports. pandas is imported by those who import these modules."""
