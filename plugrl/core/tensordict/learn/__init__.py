"""What trains a policy on the steps that were collected."""
