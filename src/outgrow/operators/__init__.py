"""What is known of torch's operators, without torch: what they compute, cost, write, and how they may be cut."""
