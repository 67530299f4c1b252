"""Training of one model on several devices: FSDP2 over ranks that Ray places."""
