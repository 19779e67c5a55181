"""On-Policy Residual Learning: fresh rollouts, one-step supervision on them, one update."""
